"""API servers that are forked from one process, which has imported vLLM once.

A new interpreter needs 14 s of CPU time to import vLLM, and a server starts two of them. Here the API server is a fork
of multiprocessing's fork server, which loads no plugin. The API server loads them as in a new interpreter.

On a CPU vLLM always starts a new interpreter for its engine core, since threads of OpenMP do not survive a fork. With
OMP_NUM_THREADS=1 there are none, so the engine core can be a fork too. Plugins are not loaded again in it: a server
that runs ours in its engine core needs `new_core`.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plumage_bench.vllm.server import Server, arguments_of, environment_of, ready

__all__ = ["fork_server", "forked"]

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


def fork_server() -> Any:
    """multiprocessing, whose processes are forked from one that has imported vLLM."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    return context


@contextmanager
def forked(
    model: Path,
    port: int,
    log: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    seconds: float = 300.0,
    *,
    new_core: bool = False,
) -> Iterator[Server]:
    """As `plumage_bench.vllm.server.serving`, which starts new interpreters. new_core: start one for the engine
    core."""
    given = arguments_of(model, port, arguments)
    process = fork_server().Process(target=_lead, args=(given, environment_of(environment), str(log), new_core))
    log.touch()
    process.start()
    with ready(Server(f"http://127.0.0.1:{port}", log, _Process(process)), seconds) as server:  # type: ignore[arg-type]
        yield server


def _lead(arguments: list[str], environment: dict[str, str], log: str, new_core: bool) -> None:
    """The first process of the server's group. It forks the API server, and kills the group when the tests end."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    gc.freeze()  # a collection need not look at what was imported
    tests = os.getppid()
    server = os.fork()
    if not server:
        _signal_at_parents_end(signal.SIGKILL)
        _serve(arguments, new_core)

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


def _serve(arguments: list[str], new_core: bool) -> None:
    """Runs the API server in this process, and ends it."""
    code = 1
    try:
        _customize()
        import vllm.envs
        from vllm.entrypoints.launchers.api_server.entry import main

        if not new_core:
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


def _customize() -> None:
    """Runs a `sitecustomize` of PYTHONPATH, as a new interpreter would."""
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if folder and (file := Path(folder, "sitecustomize.py")).is_file():
            runpy.run_path(str(file))
            return
