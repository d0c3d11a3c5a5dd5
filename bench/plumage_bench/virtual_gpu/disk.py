"""A disk in virtual time, in place of the threads that read and write one (`disk_tier.transfers.Pool`).

Reads go one after the other, and so do writes. Each chunk takes a latency, then its bytes at the disk's rate. The bytes
are moved at once, and the transfer ends when the virtual clock reaches its end. The engine looks for ended transfers at
each step only, as with a real disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from plumage_bench.virtual_gpu.clock import Clock

__all__ = ["VirtualDisk"]

_LATENCY: Final = 100e-6  # seconds until the first byte of a chunk; flash


class VirtualDisk:
    """reading, writing: bytes a second. chunk: bytes of one, of the modelled device's KV cache."""

    def __init__(self, clock: Clock, *, reading: float, writing: float, chunk: float) -> None:
        self._clock = clock
        self._seconds = {True: _LATENCY + chunk / reading, False: _LATENCY + chunk / writing}
        self._free_at = {True: 0.0, False: 0.0}  # by whether it reads
        self._on_way: list[tuple[float, int, float]] = []  # end, job, seconds

    def enqueue_load(self, job_id: int, n_tasks: int, tasks: Sequence[Callable[[], None]]) -> None:
        self._enqueue(job_id, tasks, reads=True)

    def enqueue_store(self, job_id: int, n_tasks: int, tasks: Sequence[Callable[[], None]]) -> None:
        self._enqueue(job_id, tasks, reads=False)

    def get_finished(self) -> list[tuple[int, bool, float]]:
        """(job, without error, seconds) of the transfers that ended since the last call."""
        now = self._clock.now()
        ended = [(job, True, seconds) for end, job, seconds in self._on_way if end <= now]
        self._on_way = [one for one in self._on_way if one[0] > now]
        return ended

    def shutdown(self, wait: bool = True) -> None:
        """There are no threads."""

    def _enqueue(self, job: int, tasks: Sequence[Callable[[], None]], *, reads: bool) -> None:
        for task in tasks:
            task()
        seconds = len(tasks) * self._seconds[reads]
        self._free_at[reads] = max(self._clock.now(), self._free_at[reads]) + seconds
        self._on_way.append((self._free_at[reads], job, seconds))
