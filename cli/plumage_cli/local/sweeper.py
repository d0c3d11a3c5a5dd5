"""Clears up after a supervisor that could not: kill -9 leaves its folder, which holds keys and logs.

`python -m plumage_cli.local.sweeper FOLDER` waits until its standard input ends, which the kernel sees to however the
supervisor ends, and removes the folders that nobody holds. After an orderly end nothing is left to remove. Of a killed
one the folder's lock may be let go a moment after the pipe, and its children, which end at about the same time, may
write a last file into a folder that is being removed; so it looks again until FOLDER is gone.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from plumage_cli.local.folder import sweep

__all__ = ["main", "sweeper"]

_PATIENCE = 10.0  # seconds for it to look once and end
_LOOKS, _PAUSE = 25, 0.2  # five seconds in all


@contextlib.contextmanager
def sweeper(folder: Path) -> Iterator[None]:
    """A sweeper beside this process, for as long as the block lasts or the process lives."""
    command = (sys.executable, "-m", __name__, str(folder))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        assert process.stdin is not None, "the pipe was asked for"
        try:
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


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
