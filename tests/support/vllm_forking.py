"""API servers that are forked from one process, which has imported vLLM once.

A new interpreter needs 12 s of CPU time to import vLLM, and a server starts two of them. The tests' own process imports
vLLM, and forks multiprocessing's fork server, before it loads anything of the plugin. Each API server is a fork of that
one. It loads plugins as in a new interpreter.

On a CPU vLLM always starts a new interpreter for its engine core, since threads of OpenMP do not survive a fork. With
OMP_NUM_THREADS=1 there are none, so the engine core can be a fork too. It has the plugins that the API server loaded.
In `test_model_name_starts_one_engine` the engine core is a new interpreter, as it is for users.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import ssl
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import Any

from plumage_bench.vllm.server import Server, arguments_of, environment_of, ready

__all__ = ["customize", "fork_server", "forked", "start_fork_server"]

_IMPORTS = ["vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"]
_PR_SET_PDEATHSIG = 1


class _Process:
    """A process of multiprocessing, with the part of Popen's interface that `Server` uses."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired("api_server", timeout or 0.0)
        return code


def start_fork_server() -> None:
    """Imports vLLM in this process, and forks the fork server from it. Otherwise that would be a new interpreter, and
    import vLLM for itself. It ends when this process has ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # here pytest makes errors of them
        for name in _IMPORTS:
            import_module(name)
    plugin = [name for name in sys.modules if name.startswith("plumage_engine.vllm.compat")]
    assert not plugin, "an API server must load the plugin itself"
    resource_tracker.ensure_running()
    address = connection.arbitrary_address("AF_UNIX")
    alive, held = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        process = os.fork()
        if not process:
            os.close(held)
            _run_fork_server(listener.fileno(), alive)
    os.close(alive)
    started: Any = forkserver._forkserver  # type: ignore[attr-defined]
    started._forkserver_address, started._forkserver_alive_fd, started._forkserver_pid = address, held, process


def _run_fork_server(listener: int, alive: int) -> None:
    """Forks a process at each request, until the tests' process has ended."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # not pytest's files
    warnings.resetwarnings()
    gc.freeze()
    try:
        forkserver.main(listener, alive, [])
    finally:
        os._exit(0)


def fork_server() -> Any:
    """multiprocessing, whose processes are forked from one that has imported vLLM."""
    return multiprocessing.get_context("forkserver")


@contextmanager
def forked(
    model: Path,
    port: int,
    log: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    seconds: float = 300.0,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Server]:
    """As `plumage_bench.vllm.server.serving`, which starts new interpreters. tls: of a client of a server with TLS."""
    given = arguments_of(model, port, arguments)
    process = fork_server().Process(target=_lead, args=(given, environment_of(environment), str(log)))
    log.touch()
    process.start()
    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    with ready(Server(url, log, _Process(process)), seconds, tls) as server:  # type: ignore[arg-type]
        yield server


def _lead(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """The first process of the server's group. It forks the API server, and kills the group when the tests end."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    gc.freeze()  # a collection need not examine what was imported
    tests = os.getppid()
    server = os.fork()
    if not server:
        _signal_at_parents_end(signal.SIGKILL)
        _serve(arguments)

    def end(number: int, _: object) -> None:
        if os.getppid() != tests:
            os.killpg(0, signal.SIGKILL)  # this process too
        os.kill(server, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    _signal_at_parents_end(signal.SIGTERM)
    if os.getppid() != tests:
        os.killpg(0, signal.SIGKILL)
    _, status = os.waitpid(server, 0)
    os._exit(os.waitstatus_to_exitcode(status) % 256)


def _signal_at_parents_end(number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _serve(arguments: list[str]) -> None:
    """Runs the API server in this process, and ends it."""
    code = 1
    try:
        customize()
        import vllm.envs
        from vllm.entrypoints.launchers.api_server.entry import main

        assert os.environ.get("OMP_NUM_THREADS") == "1"
        vllm.envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = lambda: "fork"
        sys.argv = ["api_server", *arguments]
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def customize() -> None:
    """Runs a `sitecustomize` of PYTHONPATH, as a new interpreter would."""
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if folder and (file := Path(folder, "sitecustomize.py")).is_file():
            runpy.run_path(str(file))
            return
