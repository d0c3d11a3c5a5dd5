"""Copies between host memory and the disk, by threads that may hang without anybody waiting for them.

A thread moves a chunk through a buffer of its own: it looks at host memory only for the time of a copy in memory, and
only while the transfer is wanted. So a transfer can be given up at any moment, and its chunks of host memory be used
for something else, however long the disk takes; its slots are free when the thread has come back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from plumage_engine.vllm.offload.disk_tier.slot_file import Slab

__all__ = ["DiskIo", "Transfer"]

_CHUNK_SECONDS = 0.05
_SLOWEST = 20e6
"""Bytes a second, of all threads together, below which computing a prefix anew is no worse than reading it; beside
50 ms a chunk for what the machine does meanwhile. Ours."""


class Pool(Protocol):
    """Of vLLM's DualQueueThreadPool."""

    def enqueue_load(self, job_id: int, n_tasks: int, tasks: Any) -> None: ...
    def enqueue_store(self, job_id: int, n_tasks: int, tasks: Any) -> None: ...
    def get_finished(self) -> list[tuple[int, bool, float]]: ...
    def shutdown(self, wait: bool = True) -> None: ...


@dataclass(eq=False, slots=True)
class Transfer:
    """keys: one for each slot and each row of host memory. done: places of those that were copied. errors: what went
    wrong, by place. wanted: False once it was given up. begun: when the places under way were begun. seconds: as vLLM's
    pool counts them, of all its threads together."""

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
        """Host memory is not looked at from here on. Waits for a copy in memory at most."""
        with self.lock:
            self.wanted = False


class _Pace:
    """Seconds in which chunks moved, and those that were allowed. Threads share one disk, so a second in which six of
    them move a chunk is one. clock: as `DiskIo`'s. allowed: seconds a chunk."""

    def __init__(self, clock: Callable[[], float], allowed: float) -> None:
        self._clock = clock
        self._allowed = allowed
        self._lock = threading.Lock()
        self._moving = self._begun = 0
        self._since = self._busy = 0.0

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """A chunk moves while this is entered. It is allowed for as it begins: its seconds are seen before it ends."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def take(self, least: float) -> tuple[float, float]:
        """The seconds that were busy since they were taken last, and those allowed; none before there are `least`."""
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


class DiskIo:
    """memory: host memory, a row a chunk. patience: seconds that a chunk may take, and that are watched for pace.
    clock: seconds, monotonic, read by several threads."""

    def __init__(
        self, slab: Slab, memory: np.ndarray[Any, Any], pool: Pool, clock: Callable[[], float], patience: float
    ) -> None:
        self._slab = slab
        self._memory: np.ndarray[Any, Any] | None = memory
        self._pool = pool
        self._clock = clock
        self._patience = patience
        self._transfers: dict[int, Transfer] = {}
        self._own = threading.local()
        self._pace = _Pace(clock, _CHUNK_SECONDS + slab.size / _SLOWEST)

    def __len__(self) -> int:
        """Transfers under way, those that were given up too."""
        return len(self._transfers)

    def start(self, transfer: Transfer) -> None:
        self._transfers[transfer.job] = transfer
        move = self._down if transfer.store else self._up
        tasks = [partial(self._run, move, transfer, place) for place in range(len(transfer.keys))]
        enqueue = self._pool.enqueue_store if transfer.store else self._pool.enqueue_load
        enqueue(transfer.job, len(tasks), tasks)

    def ended(self) -> Iterator[Transfer]:
        """Those whose threads have come back since it was asked last."""
        for job, _, seconds in self._pool.get_finished():
            transfer = self._transfers.pop(job)
            transfer.seconds = seconds
            yield transfer

    def too_slow(self) -> str:
        """Why the disk is of no use, in words; empty while it is."""
        oldest = min((at for one in self._transfers.values() for at in list(one.begun.values())), default=None)
        if oldest is not None and self._clock() - oldest > self._patience:
            return f"a chunk of {self._slab.size} bytes has not been read or written in {self._patience:.0f} s"
        spent, allowed = self._pace.take(self._patience)
        return f"the last transfers took {spent:.0f} s, {allowed:.0f} s were allowed" if spent > allowed else ""

    def close(self) -> None:
        """Every transfer is given up, and threads end by themselves. Waits for none of them, but for copies in memory:
        after that host memory may go. The room on the disk is given back by whoever is the last to leave."""
        for transfer in list(self._transfers.values()):
            transfer.give_up()
        self._memory = None
        closing = threading.Thread(target=self._leave, name="plumage-disk-closing", daemon=True)
        closing.start()

    def _leave(self) -> None:
        self._pool.shutdown(wait=True)
        self._slab.close()

    # -- in the threads ----------------------------------------------------------------------------------------------

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
            self._slab.write(transfer.slots[place], buffer)
            transfer.done.add(place)

    def _up(self, transfer: Transfer, place: int, buffer: Any) -> None:
        self._slab.read(transfer.slots[place], buffer)
        if self._copy(transfer, buffer, transfer.rows[place], down=False):
            transfer.done.add(place)

    def _copy(self, transfer: Transfer, buffer: Any, row: int, *, down: bool) -> bool:
        with transfer.lock:
            if not transfer.wanted or self._memory is None:
                return False
            there = self._memory[row]
            np.copyto(buffer, there) if down else np.copyto(there, buffer)
            del there  # before the lock: whoever waits for it may unmap the memory
            return True

    def _buffer(self) -> Any:
        buffer = getattr(self._own, "buffer", None)
        if buffer is None:
            buffer = self._own.buffer = np.empty(self._slab.size, dtype=np.int8)
        return buffer
