"""Deletes the folder of a supervisor that was killed: the folder holds keys and logs.

`python -m plumage_cli.local.folder.cleanup FOLDER` waits for the end of its standard input. The kernel closes that pipe
however the supervisor ends. Then it deletes stale folders, and repeats until FOLDER is gone. After a kill the lock may
be released a moment after the pipe, and the pool's processes may write a last file into the folder. After an orderly
end nothing is left to delete. The guard of the directory's server runs the same command, in case this process is killed
too.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from plumage_cli.local.folder.pool_folder import remove_stale

__all__ = ["CleanupProcess", "cleanup_command", "cleanup_process", "main"]

_END_SECONDS = 10.0  # for the process to delete what is stale, and end
_TRIES, _PAUSE = 25, 0.2  # five seconds in all


def cleanup_command(folder: Path) -> tuple[str, ...]:
    """The command that deletes `folder` once its standard input ends."""
    return (sys.executable, "-m", __name__, str(folder))


class CleanupProcess:
    """The process that outlives this one."""

    def __init__(self, folder: Path) -> None:
        self._command = cleanup_command(folder)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def restart_if_ended(self) -> None:
        """OSError where no process can be started."""
        if self._process.poll() is not None:
            self._close()
            self._process = self._start()

    def end(self) -> None:
        """Let it delete what is stale, and wait for its end."""
        self._close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        assert self._process.stdin is not None, "the pipe was asked for"
        with contextlib.suppress(OSError):
            self._process.stdin.close()


@contextlib.contextmanager
def cleanup_process(folder: Path) -> Iterator[CleanupProcess]:
    """A cleanup process for the duration of the block, or until this process ends."""
    process = CleanupProcess(folder)
    try:
        yield process
    finally:
        process.end()


def main() -> None:
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    for _ in range(_TRIES):
        remove_stale()
        if not folder.exists():
            return
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
