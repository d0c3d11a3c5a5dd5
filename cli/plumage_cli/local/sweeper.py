"""Clears up after a supervisor that could not: kill -9 leaves its folder, which holds keys and logs.

`python -m plumage_cli.local.sweeper FOLDER` waits until its standard input ends, which the kernel sees to however the
supervisor ends, and removes the folders that nobody holds. After an orderly end nothing is left to remove. Of a killed
one the folder's lock may be let go a moment after the pipe, and its children, which end at about the same time, may
write a last file into a folder that is being removed; so it looks again until FOLDER is gone. Where it is killed too,
the guard of the directory's server runs the same command.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from plumage_cli.local.folder import sweep

__all__ = ["Sweeper", "main", "sweep_command", "sweeper"]

_PATIENCE = 10.0  # seconds for it to look once and end
_LOOKS, _PAUSE = 25, 0.2  # five seconds in all


def sweep_command(folder: Path) -> tuple[str, ...]:
    """What sweeps `folder` once its standard input ends."""
    return (sys.executable, "-m", __name__, str(folder))


class Sweeper:
    """The process beside this one; `renew` starts another where it was killed."""

    def __init__(self, folder: Path) -> None:
        self._command = sweep_command(folder)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def renew(self) -> None:
        """OSError where no process can be started."""
        if self._process.poll() is not None:
            self._close()
            self._process = self._start()

    def end(self) -> None:
        """It looks once more, and ends."""
        self._close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        assert self._process.stdin is not None, "the pipe was asked for"
        with contextlib.suppress(OSError):
            self._process.stdin.close()


@contextlib.contextmanager
def sweeper(folder: Path) -> Iterator[Sweeper]:
    """A sweeper beside this process, for as long as the block lasts or the process lives."""
    beside = Sweeper(folder)
    try:
        yield beside
    finally:
        beside.end()


def main() -> None:
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    for _ in range(_LOOKS):
        sweep()
        if not folder.exists():
            return
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
