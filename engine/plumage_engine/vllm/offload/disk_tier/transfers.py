"""Copies between host memory and the disk, in threads that may hang without blocking the engine.

A thread moves a chunk through its own buffer. It touches host memory only during a copy in memory, and only while the
transfer is wanted. So a transfer can be given up at any moment and its host memory reused, however slow the disk is.
Its slots are free when the thread has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from plumage_engine.vllm.offload.disk_tier.slot_file import SlotFile

__all__ = ["DiskTransfers", "Transfer"]

_CHUNK_SECONDS = 0.05
_SLOWEST = 20e6
"""Bytes a second, of all threads together, below which computing a prefix again is no slower than reading it.

50 ms a chunk are allowed beside it for other work of the machine. Our own estimate.
"""


class Pool(Protocol):
    """The used part of vLLM's DualQueueThreadPool."""

    def enqueue_load(self, job_id: int, n_tasks: int, tasks: Any) -> None: ...
    def enqueue_store(self, job_id: int, n_tasks: int, tasks: Any) -> None: ...
    def get_finished(self) -> list[tuple[int, bool, float]]: ...
    def shutdown(self, wait: bool = True) -> None: ...


@dataclass(eq=False, slots=True)
class Transfer:
    """keys: one for each slot and each row of host memory.
    done: places that were copied.
    errors: by place.
    wanted: False once it was given up.
    begun: when each place under way began.
    seconds: as vLLM's pool counts them, of all its threads together.
    """

    job: int
    keys: Sequence[bytes]
    slots: Sequence[int]
    rows: Sequence[int]
    store: bool
    done: set[int] = field(default_factory=set)
    errors: dict[int, Exception] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    wanted: bool = True
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def give_up(self) -> None:
        """Host memory is not touched from here on. Waits for one copy in memory at most."""
        with self.lock:
            self.wanted = False


class _Pace:
    """Measures the seconds in which chunks moved against those allowed.

    Threads share one disk, so a second in which six threads move a chunk counts once.
    clock: as `DiskTransfers`'.
    allowed: seconds a chunk.
    """

    def __init__(self, clock: Callable[[], float], allowed: float) -> None:
        self._clock = clock
        self._allowed = allowed
        self._lock = threading.Lock()
        self._moving = self._begun = 0
        self._since = self._busy = 0.0

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """A chunk moves while this is entered. Its allowance counts from its start, its seconds as they pass."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def take(self, least: float) -> tuple[float, float]:
        """The busy seconds since the last call and those allowed; zeros until there are `least`."""
        self._count(0)
        with self._lock:
            if self._busy < least:
                return 0.0, 0.0
            found = self._busy, self._begun * self._allowed
            self._busy, self._begun = 0.0, 0
            return found

    def _count(self, more: int) -> None:
        with self._lock:
            now = self._clock()
            if self._moving:
                self._busy += now - self._since
            self._since = now
            self._moving += more
            self._begun += max(more, 0)


class DiskTransfers:
    """memory: host memory, a row a chunk.
    timeout: of a chunk, in seconds, and the window over which the pace is measured.
    clock: seconds, monotonic, read by several threads.
    """

    def __init__(
        self, file: SlotFile, memory: np.ndarray[Any, Any], pool: Pool, clock: Callable[[], float], timeout: float
    ) -> None:
        self._file = file
        self._memory: np.ndarray[Any, Any] | None = memory
        self._pool = pool
        self._clock = clock
        self._timeout = timeout
        self._transfers: dict[int, Transfer] = {}
        self._own = threading.local()
        self._pace = _Pace(clock, _CHUNK_SECONDS + file.size / _SLOWEST)

    def __len__(self) -> int:
        """Transfers under way, including those that were given up."""
        return len(self._transfers)

    def start(self, transfer: Transfer) -> None:
        self._transfers[transfer.job] = transfer
        move = self._down if transfer.store else self._up
        tasks = [partial(self._run, move, transfer, place) for place in range(len(transfer.keys))]
        enqueue = self._pool.enqueue_store if transfer.store else self._pool.enqueue_load
        enqueue(transfer.job, len(tasks), tasks)

    def ended(self) -> Iterator[Transfer]:
        """Transfers whose threads have ended since the last call."""
        for job, _, seconds in self._pool.get_finished():
            transfer = self._transfers.pop(job)
            transfer.seconds = seconds
            yield transfer

    def too_slow(self) -> str:
        """Why the disk is too slow, in words; empty while it is not."""
        oldest = min((at for one in self._transfers.values() for at in list(one.begun.values())), default=None)
        if oldest is not None and self._clock() - oldest > self._timeout:
            return f"a chunk of {self._file.size} bytes has not been read or written in {self._timeout:.0f} s"
        spent, allowed = self._pace.take(self._timeout)
        return f"the last transfers took {spent:.0f} s, {allowed:.0f} s were allowed" if spent > allowed else ""

    def close(self) -> None:
        """Give up every transfer; threads end by themselves.

        Waits only for copies in memory; after that host memory may be unmapped. A thread of its own frees the disk's
        space after the last transfer.
        """
        for transfer in list(self._transfers.values()):
            transfer.give_up()
        self._memory = None
        closing = threading.Thread(target=self._leave, name="plumage-disk-closing", daemon=True)
        closing.start()

    def _leave(self) -> None:
        self._pool.shutdown(wait=True)
        self._file.close()

    # -- in the threads ------------------------------------------------------------------------------------------------

    def _run(self, move: Callable[[Transfer, int, Any], None], transfer: Transfer, place: int) -> None:
        if not transfer.wanted:
            return
        transfer.begun[place] = self._clock()
        try:
            with self._pace.chunk():
                move(transfer, place, self._buffer())
        except Exception as error:
            transfer.errors[place] = error
        finally:
            del transfer.begun[place]

    def _down(self, transfer: Transfer, place: int, buffer: Any) -> None:
        if self._copy(transfer, buffer, transfer.rows[place], down=True):
            self._file.write(transfer.slots[place], buffer)
            transfer.done.add(place)

    def _up(self, transfer: Transfer, place: int, buffer: Any) -> None:
        self._file.read(transfer.slots[place], buffer)
        if self._copy(transfer, buffer, transfer.rows[place], down=False):
            transfer.done.add(place)

    def _copy(self, transfer: Transfer, buffer: Any, row: int, *, down: bool) -> bool:
        with transfer.lock:
            if not transfer.wanted or self._memory is None:
                return False
            there = self._memory[row]
            np.copyto(buffer, there) if down else np.copyto(there, buffer)
            del there  # before the lock is released: the next holder may unmap the memory
            return True

    def _buffer(self) -> Any:
        buffer = getattr(self._own, "buffer", None)
        if buffer is None:
            buffer = self._own.buffer = np.empty(self._file.size, dtype=np.int8)
        return buffer
