"""Clears up after a supervisor that could not: kill -9 leaves its folder, which holds keys and logs.

`python -m plumage_cli.local.sweeper` waits until its standard input ends, which the kernel sees to however the
supervisor ends, and removes the folders that nobody holds. After an orderly end nothing is left to remove. Children of
a killed supervisor end at about the same moment and may write a last file into a folder that is being removed, so it
looks again until nothing is left.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from plumage_cli.local.folder import stale_pools, sweep

__all__ = ["main", "sweeper"]

_PATIENCE = 10.0  # seconds for it to look once and end
_LOOKS, _PAUSE = 25, 0.2  # five seconds in all


@contextlib.contextmanager
def sweeper() -> Iterator[None]:
    """A sweeper beside this process, for as long as the block lasts or the process lives."""
    command = (sys.executable, "-m", __name__)
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
    sys.stdin.buffer.read()
    for _ in range(_LOOKS):
        sweep()
        if not stale_pools():
            return
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
