"""Writes JSON lines to standard output: the access log, and the log of what tenants used.

A line contains no prompt, answer, key or query string. A thread writes the lines, so a slow reader delays no request.
When `MAX_WAITING` lines wait, new ones are refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

import orjson

__all__ = ["JsonLines"]

MAX_WAITING: Final = 10_000  # lines
_CLOSE_TIMEOUT: Final = 1.0  # seconds that `close` waits for the last lines
_writing = threading.Lock()  # a write to a pipe that is longer than 4 KiB may mix with another thread's


class JsonLines:
    """`dropped`: lines that were not written. A thread runs from the first line until `close`.

    It writes to the file descriptor: a blocked write would keep the lock of `sys.stdout`, and the process could not
    end.
    """

    def __init__(self, descriptor: int = 1) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, line: Mapping[str, Any]) -> None:
        """Queues a line, or drops it while too many wait. Values that are None are left out."""
        if not self.offer(line):
            self._count_dropped(1)

    def offer(self, line: Mapping[str, Any]) -> bool:
        """Queues a line; returns False while too many wait. Values that are None are left out."""
        data = orjson.dumps({name: value for name, value in line.items() if value is not None}) + b"\n"
        with self._more:
            if len(self._lines) >= MAX_WAITING or self._closed:
                return False
            self._lines.append(data)
            self._more.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="JSON lines", daemon=True)
            self._thread.start()
        return True

    def close(self) -> None:
        """Waits briefly until the last lines are written."""
        with self._more:
            self._closed = True
            self._more.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        while lines := self._take():
            try:
                self._write(b"".join(lines))
            except OSError:  # the reader closed its end
                self._count_dropped(len(lines))

    def _count_dropped(self, lines: int) -> None:
        with self._more:  # both threads count
            self.dropped += lines

    def _write(self, data: bytes) -> None:
        with _writing:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def _take(self) -> list[bytes]:
        """Waits for lines and returns them; returns nothing once the log is closed."""
        with self._more:
            while not self._lines and not self._closed:
                self._more.wait()
            lines, self._lines = self._lines, []
            return lines
