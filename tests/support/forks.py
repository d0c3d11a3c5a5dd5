"""Processes of the product that are forked from one which has imported it.

A new interpreter needs up to two seconds of CPU time to import a program, and tests start hundreds of them. A fork runs
the program's `__main__` as `python -m` does, with its own arguments, environment and output. Tests in `tests/e2e` and
`tests/e2e_cluster` start new interpreters, as users do. So must a program that is changed before it imports something.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

__all__ = ["Fork", "run", "start"]

_TESTS = Path(__file__).parents[1]
_MESSAGE = 1 << 18  # bytes; an environment has a few thousand
_IMPORTS = {
    "plumage_cli": (
        "plumage_cli.main",
        "plumage_cli.commands.doctor",
        "plumage_cli.commands.get",
        "plumage_cli.cluster.client",
        "kubernetes.client",
    ),
    "support.mortal_engine": ("plumage_engine.simulator.__main__",),
    "support.operator_checked_often": ("plumage_operator.__main__",),
    "support.operator_lives": ("plumage_operator.__main__",),
}
"""What is imported before the fork; of other programs it is `__main__`."""


class Fork:
    """A process, with the part of Popen's interface that tests use."""

    def __init__(self, program: str, pid: int, status: socket.socket) -> None:
        self.program, self.pid = program, pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.program, timeout or 0.0)
            self.returncode = int(self._status.recv(16))
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    program: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    output: IO[Any] | None = None,
    errors: IO[Any] | None = None,
) -> Fork:
    """Starts `python -m PROGRAM`. output: where it writes; without one it writes where the tests do. errors: the same
    for its standard error, which otherwise goes where its output goes. It ends when the tests end."""
    ours, theirs = socket.socketpair()
    job = {
        "program": program,
        "arguments": arguments,
        "environment": dict(os.environ if environment is None else environment),
        "folder": os.getcwd(),
    }
    out = sys.__stdout__ if output is None else output
    err = errors or (sys.__stderr__ if output is None else output)
    assert out is not None
    assert err is not None
    with theirs:
        files = [out.fileno(), err.fileno(), theirs.fileno()]
        return Fork(program, _parent().fork(json.dumps(job).encode(), files), ours)


def run(
    program: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of `python -m PROGRAM`, with its output captured as text."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(program, *arguments, environment=environment, output=out, errors=err)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        texts = [file.read() for file in (out, err) if not file.seek(0)]
    return subprocess.CompletedProcess([program, *arguments], status, *texts)


class _Parent:
    """The process that forks. It has one thread, and none of the tests' state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.forks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        atexit.register(self.end)

    def fork(self, job: bytes, files: list[int]) -> int:
        """The pid of a new fork. files: its output, its standard error, and the socket for its exit status."""
        with self._lock:
            socket.send_fds(self._socket, [job], files)
            answer = self._socket.recv(16)
        assert answer, "the process that forks has ended: see its output above"
        return int(answer)

    def end(self) -> None:
        self._socket.close()
        self._process.wait(30)


@cache
def _parent() -> _Parent:
    return _Parent()


@dataclass
class _Forking:
    """The loop of the process that forks. running: pid and status socket of each fork, by its pidfd."""

    jobs: socket.socket
    running: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __call__(self) -> dict[str, Any] | None:
        """Returns the job in each fork. Returns None when the tests have ended, after it killed all forks."""
        while True:
            ready, _, _ = select.select([self.jobs, *self.running], [], [])
            for pidfd in self.running.keys() & set(ready):
                self._report(pidfd)
            if self.jobs in ready:
                message, files, _, _ = socket.recv_fds(self.jobs, _MESSAGE, 3, socket.MSG_CMSG_CLOEXEC)
                if not message:
                    for pid, _ in self.running.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                job: dict[str, Any] = json.loads(message)
                if self._forked(job, files):
                    return job

    def _report(self, pidfd: int) -> None:
        pid, status = self.running.pop(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # the test did not wait for it
            os.write(status, str(code).encode())
        os.close(status)
        os.close(pidfd)

    def _forked(self, job: dict[str, Any], files: Sequence[int]) -> bool:
        """True in the fork."""
        _import(job["program"])
        output, errors, status = files
        if pid := os.fork():
            self.running[os.pidfd_open(pid)] = (pid, status)
            os.close(output)
            os.close(errors)
            self.jobs.send(str(pid).encode())
            return False
        os.dup2(output, 1)
        os.dup2(errors, 2)
        self.jobs.close()
        for pidfd, (_, other) in self.running.items():
            os.close(pidfd)
            os.close(other)
        for file in files:
            os.close(file)
        return True


@cache
def _import(program: str) -> None:
    for name in _IMPORTS.get(program, (f"{program}.__main__",)):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the memory of all that is imported


def _main() -> None:
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = _Forking(socket.socket(fileno=int(sys.argv[1])))()
    if job is None:
        return
    signal.signal(signal.SIGINT, interrupted)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for client in ("kubernetes", "kubernetes.aio"):  # it reads this variable when it is imported
        if config := sys.modules.get(f"{client}.config.kube_config"):
            vars(config)["KUBE_CONFIG_DEFAULT_LOCATION"] = os.environ.get("KUBECONFIG", "~/.kube/config")
    sys.argv = [sys.argv[0], *job["arguments"]]
    sys.modules.pop(f"{job['program']}.__main__", None)  # else runpy warns that it runs it a second time
    runpy.run_module(job["program"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
