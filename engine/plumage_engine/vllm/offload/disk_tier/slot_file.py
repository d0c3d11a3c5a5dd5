"""Room for chunks on a disk: one file of slots, that nobody can find and that nothing leaves behind.

The file's name is taken away as soon as it is open, so the file system gives its room back when the process ends,
however it ends, and two engines may share a folder. It grows as slots are used and never past its size. What a slot
holds is known in memory only, with a checksum: a slot that reads differently is as good as empty.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import xxhash

from plumage.errors import PlumageError

__all__ = ["DamagedError", "Slab"]


class DamagedError(PlumageError):
    """A slot does not hold what was written to it."""


class Slab:
    """folder: made where it is not there. size: bytes of a slot. OSError where nothing can be written there.

    Slots may be read and written by several threads at once, each slot by one; a write and a read move `size` bytes."""

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.size = size
        self._sums: dict[int, int] = {}
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # for as long as the engine runs
        self._number = self._file.fileno()
        try:
            os.pwrite(self._number, bytes(size), 0)
        except OSError:
            self._file.close()
            raise

    def write(self, slot: int, data: Any) -> None:
        """OSError where the disk does not take it, which leaves the slot empty."""
        self._sums.pop(slot, None)
        done, view = 0, memoryview(data)
        while done < self.size:
            done += os.pwrite(self._number, view[done:], slot * self.size + done)
        self._sums[slot] = xxhash.xxh3_64_intdigest(data)

    def read(self, slot: int, into: Any) -> None:
        """DamagedError where the slot holds anything but what was written last; OSError where the disk fails."""
        done, view = 0, memoryview(into)
        while done < self.size:
            got = os.preadv(self._number, [view[done:]], slot * self.size + done)
            if not got:
                raise DamagedError(f"slot {slot} ends after {done} of {self.size} bytes")
            done += got
        if self._sums.get(slot) != xxhash.xxh3_64_intdigest(into):
            raise DamagedError(f"slot {slot} holds other bytes than were written")

    def close(self) -> None:
        """Gives the room back, which can take a while. Nobody may read or write any more."""
        self._file.close()
