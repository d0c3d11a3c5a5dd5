"""One JSON line for each request, on standard output: who asked for what, where it went, how it ended.

A line holds no prompt, no answer, no key and no query string. Lines wait in memory until a thread writes them, so that
a reader who stands still holds up no request; of more than `MOST` waiting lines the new ones are dropped and counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

import orjson

__all__ = ["AccessLog"]

MOST: Final = 10_000  # lines
LAST: Final = 1.0  # seconds that a router's end waits for the last lines


class AccessLog:
    """`dropped`: lines that were not written. A thread runs from the first line to `close`. It writes to the descriptor
    itself: one that is held up would keep the lock of `sys.stdout`, and the process could not end."""

    def __init__(self, descriptor: int = 1) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, line: Mapping[str, Any]) -> None:
        """Writes it soon. Values that are None are left out."""
        data = orjson.dumps({name: value for name, value in line.items() if value is not None}) + b"\n"
        with self._more:
            if len(self._lines) >= MOST or self._closed:
                self.dropped += 1
                return
            self._lines.append(data)
            self._more.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Waits a moment for the last lines."""
        with self._more:
            self._closed = True
            self._more.notify()
        if self._thread is not None:
            self._thread.join(LAST)

    def _run(self) -> None:
        while lines := self._take():
            try:
                self._write(b"".join(lines))
            except OSError:  # nobody reads any more
                self.dropped += len(lines)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _take(self) -> list[bytes]:
        """What waits, or nothing once the log is closed."""
        with self._more:
            while not self._lines and not self._closed:
                self._more.wait()
            lines, self._lines = self._lines, []
            return lines
