"""One container's life: created, running, exited; its process, its log, commands run inside it."""

from __future__ import annotations

import enum
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from cluster.cri.logs import ContainerLog
from cluster.cri.memory import MemoryGroup
from cluster.cri.spec import Spec

__all__ = ["Container", "State"]

_log = logging.getLogger(__name__)
_SHIM = Path(__file__).with_name("shim.py")
_KILL_S, _DRAIN_S = 10.0, 5.0
_MOST_OUTPUT = 1 << 24  # output of a command run inside; the kubelet takes no more


class State(enum.Enum):
    CREATED = enum.auto()
    RUNNING = enum.auto()
    EXITED = enum.auto()


class Container:
    """Times are nanoseconds since the epoch, 0 before there is one; `pid` is 0 unless it runs."""

    def __init__(self, spec: Spec, memory: MemoryGroup | None, log: Path | None) -> None:
        self.spec = spec
        self.log = ContainerLog(log)
        self.state = State.CREATED
        self.created_at, self.started_at, self.finished_at = time.time_ns(), 0, 0
        self.exit_code, self.reason, self.pid = 0, "", 0
        self._memory = memory
        self._done = threading.Event()

    def start(self) -> None:
        """Returns when the first process exists. If it could not start, the log has the reason and the exit code is
        126."""
        folder = Path(self.spec.dir)
        folder.mkdir(parents=True)
        spec_file = folder / "spec.json"
        spec_file.write_text(json.dumps(asdict(self.spec)))
        self.log.open()
        process, self.pid = _start_shim(spec_file)
        (folder / "pid").write_text(str(self.pid))
        self.state, self.started_at = State.RUNNING, time.time_ns()
        assert process.stdout is not None
        assert process.stderr is not None
        self.log.follow(process.stdout, "stdout")
        self.log.follow(process.stderr, "stderr")
        threading.Thread(target=self._reap, args=(process.wait,), daemon=True).start()

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> None:
        """Sends SIGTERM, and kills the container after `grace_s` seconds. Blocks until it has ended."""
        if self.state is not State.RUNNING:
            return
        if grace_s > 0 and self._signal(number) and self._done.wait(grace_s):
            return
        self._signal(signal.SIGKILL)
        self._done.wait(_KILL_S)

    def remove(self) -> None:
        """Ends the container and removes its memory group. The caller removes its folder."""
        self.stop(0)
        self.log.close()
        if self._memory is not None:
            self._memory.remove()

    def run(self, command: Sequence[str], limit_s: float | None) -> tuple[int, bytes, bytes]:
        """Runs a command inside the container. Returns its exit code and output. Raises TimeoutError, after it killed
        the command."""
        spec = self.spec
        enter = ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "-u", "-i", "-r"]
        inside = [*enter, "-G", str(spec.gid), "-S", str(spec.uid), "--", *command]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            inside, env=spec.env, cwd="/", stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise TimeoutError(f"command timed out after {limit_s} s") from None
        return _status(process.returncode), out[:_MOST_OUTPUT], err[:_MOST_OUTPUT]

    def _signal(self, number: signal.Signals) -> bool:
        _log.info("container %s of %s gets %s", self.spec.name, self.spec.pod, number.name)
        try:
            if self.pid:
                os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _reap(self, wait: Callable[[], int]) -> None:
        code = _status(wait())
        self.log.finish(_DRAIN_S)
        killed = self._memory is not None and self._memory.was_killed()
        self.exit_code = code
        self.reason = "OOMKilled" if killed else "Error" if code else "Completed"
        self.finished_at, self.pid = time.time_ns(), 0
        self.state = State.EXITED
        _log.info("container %s of %s ended with %d", self.spec.name, self.spec.pod, code)
        self._done.set()


def _start_shim(spec_file: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the shim. Returns it, and the pid of the container's first process: 0 if the shim failed before it
    existed."""
    reader, writer = os.pipe()
    pipe = subprocess.PIPE
    command = [sys.executable, "-S", "-E", str(_SHIM), str(spec_file), str(writer)]
    try:
        process = subprocess.Popen(command, pass_fds=(writer,), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    finally:
        os.close(writer)
    with os.fdopen(reader) as answer:
        return process, int(answer.read() or 0)


def _status(code: int) -> int:
    """The exit status as a shell reports it: 128+n for signal n."""
    return code if code >= 0 else 128 - code
