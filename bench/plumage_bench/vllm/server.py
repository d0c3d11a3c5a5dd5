"""A real vLLM API server in a process of its own. It is ended with all processes that it started.

It runs under local mode's child process, which ends the server and its engine core when this process is killed. So a
killed benchmark leaves no server behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from plumage.errors import PlumageError

__all__ = ["Server", "ServerError", "serving"]

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
    """url: http://127.0.0.1:PORT. log: its output. pid: also the id of the process group, so that a test can kill
    it."""

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


@contextmanager
def serving(
    model: Path,
    port: int,
    log: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    seconds: float = 300.0,
    *,
    fork: bool = False,
) -> Iterator[Server]:
    """A server of `model` for the time of a `with`, ready when /health answers. arguments: of the command line; they
    override those here. environment: added to this process's own. ServerError if it is not ready in `seconds`. fork:
    start it by `plumage_bench.vllm.api_server`, for servers without our plugin."""
    module = "plumage_bench.vllm.api_server" if fork else "vllm.entrypoints.openai.api_server"
    command = [sys.executable, "-m", module, f"--model={model}", "--host=127.0.0.1"]
    given = {"command": [*command, f"--port={port}", *_ARGUMENTS, *arguments], "environment": {}}
    config = log.with_name(f"{log.name}.command.json")
    config.write_text(json.dumps(given))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "plumage_cli.local.processes.vllm_child", "--config", str(config)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_ENVIRONMENT, **os.environ, **(environment or {})},
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", log, process)
    try:
        _wait(server, seconds)
        yield server
    finally:
        server.end()


def _wait(server: Server, seconds: float) -> None:
    until = time.monotonic() + seconds
    with httpx.Client(base_url=server.url, timeout=5.0, trust_env=False) as http:  # making one takes 30 ms of CPU
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
