"""The log of a child: its last lines in memory, all lines in a file of bounded size.

On a full disk the file stops growing and the pool keeps running. `write_error` then has the reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

__all__ = ["PREFIX", "ChildLog"]

PREFIX = "[plumage]"  # of the supervisor's own lines

_SHOWN = 5  # lines in an error message
_TAIL = 200  # lines kept in memory
_MAX_LINE = 4096  # bytes of one line
_MAX_FILE = 5_000_000  # bytes of a file; the previous file is kept as `.1`


class ChildLog:
    """The log of one child, across its restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.write_error: str | None = None  # of the last write to the file
        self._size = 0

    def write(self, line: str) -> None:
        self.tail.append(line)
        try:
            if self._size > _MAX_FILE:
                self.path.replace(self.path.with_suffix(".log.1"))
                self._size = 0
            with self.path.open("a") as file:
                self._size += file.write(line + "\n")
            self.write_error = None
        except OSError as error:
            self.write_error = error.strerror

    async def pump(self, stream: asyncio.StreamReader) -> None:
        """Read lines until the stream ends. Long lines are cut, so that a child can't fill our memory."""
        while True:
            try:
                line = await stream.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    self.write(_text(error.partial))
                return
            except asyncio.LimitOverrunError as error:
                line = await stream.read(error.consumed)
            self.write(_text(line))

    def last_lines(self) -> str:
        """The last lines that the child wrote, indented, for an error message."""
        own = [line for line in self.tail if not line.startswith(PREFIX)]
        return "\n".join(f"    {line}" for line in own[-_SHOWN:])


def _text(line: bytes) -> str:
    return line[:_MAX_LINE].decode("utf-8", "replace").rstrip()
