"""Slots for chunks in one unnamed file on a disk.

The file has no name once it is open. So the file system frees its space when the process ends in any way. Two engines
may share a folder. It grows as slots are used, and never beyond its size. The content of a slot is known in memory
only, with a checksum: a slot that reads differently counts as empty.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import xxhash

from plumage.errors import PlumageError

__all__ = ["DamagedError", "SlotFile"]


class DamagedError(PlumageError):
    """A slot's content differs from what was written to it."""


class SlotFile:
    """folder: created where it does not exist.
    size: bytes of a slot; a write and a read move as many.

    OSError where the folder can't be written. Several threads may read and write slots, each slot one thread at a time.
    """

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.size = size
        self._sums: dict[int, int] = {}
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # open as long as the engine runs
        self._number = self._file.fileno()
        try:
            os.pwrite(self._number, bytes(size), 0)
        except OSError:
            self._file.close()
            raise

    def write(self, slot: int, data: Any) -> None:
        """OSError where the disk fails, which leaves the slot empty."""
        self._sums.pop(slot, None)
        done, view = 0, memoryview(data)
        while done < self.size:
            done += os.pwrite(self._number, view[done:], slot * self.size + done)
        self._sums[slot] = xxhash.xxh3_64_intdigest(data)

    def read(self, slot: int, into: Any) -> None:
        """DamagedError where the slot differs from what was written last; OSError where the disk fails."""
        done, view = 0, memoryview(into)
        while done < self.size:
            got = os.preadv(self._number, [view[done:]], slot * self.size + done)
            if not got:
                raise DamagedError(f"slot {slot} ends after {done} of {self.size} bytes")
            done += got
        if self._sums.get(slot) != xxhash.xxh3_64_intdigest(into):
            raise DamagedError(f"slot {slot} holds other bytes than were written")

    def close(self) -> None:
        """Free the space, which may take a while. No thread may use the file any more."""
        self._file.close()
