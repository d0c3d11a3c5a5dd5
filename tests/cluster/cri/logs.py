"""A container's log in the form that kubelets read: a line for each write, with time, stream, and whether it is
complete."""

from __future__ import annotations

import datetime
import os
import threading
from pathlib import Path
from typing import IO

__all__ = ["ContainerLog"]

_LONGEST = 16_384  # bytes of one line; other CRI runtimes split there too


class ContainerLog:
    """Copies two pipes to the log file, until both are closed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path or Path(os.devnull)
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Opens the file, or a new file with the same name after a rotation."""
        with self._lock:
            self._close()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)

    def follow(self, pipe: IO[bytes], stream: str) -> None:
        thread = threading.Thread(target=self._copy, args=(pipe, stream), daemon=True)
        thread.start()
        self._threads.append(thread)

    def finish(self, within_s: float) -> None:
        """Waits until both pipes are read. A child of the container may keep them open."""
        for thread in self._threads:
            thread.join(within_s)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _copy(self, pipe: IO[bytes], stream: str) -> None:
        with pipe:
            for line in iter(lambda: pipe.readline(_LONGEST), b""):
                self._write(line, stream)

    def _write(self, line: bytes, stream: str) -> None:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        tag, body = ("F", line) if line.endswith(b"\n") else ("P", line + b"\n")
        with self._lock:
            if self._file is not None:
                self._file.write(f"{stamp}000Z {stream} {tag} ".encode() + body)
