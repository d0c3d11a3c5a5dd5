"""A real vLLM API server in a process of its own. It is ended with all processes that it started.

It runs under local mode's child process, which ends the server and its engine core when this process is killed. So a
killed benchmark leaves no server behind.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from plumage.errors import PlumageError

__all__ = ["Server", "ServerError", "arguments_of", "environment_of", "ready", "serving"]

_ENVIRONMENT = {
    # The engine core runs the model itself, as it does for one GPU. A worker process would import vLLM a third time.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
# The CPU worker compares its share with the memory of NUMA node 0 alone, so it may refuse more than 0.4.
_ARGUMENTS = ("--served-model-name=tiny", "--enforce-eager", "--gpu-memory-utilization=0.4", "--block-size=32")
_KILL_SECONDS = 10.0


class ServerError(PlumageError):
    """The server ended or did not answer in time. The message has the end of its log."""


@dataclass(slots=True)
class Server:
    """url: http://127.0.0.1:PORT, or with https. log: its output. pid: also the id of the process group, so that a test
    can kill it."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        """SIGTERM, then SIGKILL for all remaining processes of the group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_KILL_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(_KILL_SECONDS)


def arguments_of(model: Path, port: int, arguments: Sequence[str]) -> list[str]:
    """All arguments of vLLM's command line. arguments: they override those here."""
    return [f"--model={model}", "--host=127.0.0.1", f"--port={port}", *_ARGUMENTS, *arguments]


def environment_of(changes: Mapping[str, str] | None) -> dict[str, str]:
    """A server's environment: this process's own, and the changes."""
    return {**_ENVIRONMENT, **os.environ, **(changes or {})}


@contextmanager
def serving(
    model: Path,
    port: int,
    log: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    seconds: float = 300.0,
) -> Iterator[Server]:
    """A server of `model` for the time of a `with`, ready when /health answers. arguments: of the command line; they
    override those here. environment: added to this process's own. ServerError if it is not ready in `seconds`."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    given = {"command": [*command, *arguments_of(model, port, arguments)], "environment": {}}
    config = log.with_name(f"{log.name}.command.json")
    config.write_text(json.dumps(given))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "plumage_cli.local.processes.vllm_child", "--config", str(config)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment_of(environment),
            start_new_session=True,
        )
    with ready(Server(f"http://127.0.0.1:{port}", log, process), seconds) as server:
        yield server


@contextmanager
def ready(server: Server, seconds: float, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """The server, when /health answers. It is ended with the `with`. tls: of a client of an https URL."""
    try:
        _wait(server, seconds, tls)
        yield server
    finally:
        server.end()


def _wait(server: Server, seconds: float, tls: ssl.SSLContext | None) -> None:
    until, verify = time.monotonic() + seconds, tls if tls is not None else True
    # Making a client takes 30 ms of CPU.
    with httpx.Client(base_url=server.url, timeout=5.0, trust_env=False, verify=verify) as http:
        while time.monotonic() < until:
            if server.process.poll() is not None:
                raise ServerError(f"vLLM ended with status {server.process.returncode}:\n{_end(server.log)}")
            with suppress(httpx.TransportError):
                if http.get("/health").status_code == httpx.codes.OK:
                    return
            time.sleep(0.2)
    raise ServerError(f"vLLM did not answer /health within {seconds:.0f} s:\n{_end(server.log)}")


def _end(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
