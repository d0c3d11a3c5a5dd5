"""What a child says: its last lines in memory, all of them in a file that stays small.

A full disk costs the file, never the pool: the lines stay in memory and one warning is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

__all__ = ["OURS", "ChildLog"]

OURS = "[plumage]"  # how the supervisor's own lines begin

_TAIL = 200  # lines kept in memory
_LONGEST = 4096  # bytes of one line
_LARGEST = 5_000_000  # bytes of a file; the one before it is kept as `.1`


class ChildLog:
    """The log of one child, over all its restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.lost: str | None = None  # why the file can't be written, if it can't
        self._size = 0

    def say(self, line: str) -> None:
        self.tail.append(line)
        try:
            if self._size > _LARGEST:
                self.path.replace(self.path.with_suffix(".log.1"))
                self._size = 0
            with self.path.open("a") as file:
                self._size += file.write(line + "\n")
            self.lost = None
        except OSError as error:
            self.lost = error.strerror

    async def pump(self, stream: asyncio.StreamReader) -> None:
        """Takes lines until the stream ends; longer ones are cut, so that no child can fill our memory."""
        while True:
            try:
                line = await stream.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    self.say(_text(error.partial))
                return
            except asyncio.LimitOverrunError as error:
                line = await stream.read(error.consumed)
            self.say(_text(line))

    def last_words(self, lines: int = 5) -> str:
        """The last lines of the child's own, indented, for an error message."""
        own = [line for line in self.tail if not line.startswith(OURS)]
        return "\n".join(f"    {line}" for line in own[-lines:])


def _text(line: bytes) -> str:
    return line[:_LONGEST].decode("utf-8", "replace").rstrip()
