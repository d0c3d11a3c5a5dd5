"""The link between the device and host memory: copies take time, one after the other in each direction.

PCIe is full duplex, so copies in one direction do not delay the other. Copies run beside the steps and don't slow them:
vLLM's offloading connector copies on its own streams and lets a request wait until its blocks have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Copy", "Link"]


@dataclass(frozen=True, slots=True)
class Copy:
    """down: to host memory. due: its end, in the clock's seconds. seconds: its duration without the wait for earlier
    copies."""

    key: int
    size: int
    down: bool
    due: float
    seconds: float


class Link:
    """copying: seconds for this many bytes. latency: seconds before the first byte."""

    def __init__(self, copying: Callable[[float], float], latency: float) -> None:
        self._copying = copying
        self._latency = latency
        self._free_at = {True: 0.0, False: 0.0}
        self._on_way: dict[int, Copy] = {}

    def __len__(self) -> int:
        """The number of unfinished copies."""
        return len(self._on_way)

    def start(self, key: int, size: int, now: float, *, down: bool) -> None:
        """Queue a copy after those in the same direction."""
        seconds = self._latency + self._copying(size)
        due = max(now, self._free_at[down]) + seconds
        self._free_at[down] = due
        self._on_way[key] = Copy(key, size, down, due, seconds)

    def done(self, now: float) -> list[Copy]:
        """The copies that have ended since the last call."""
        ended = [copy for copy in self._on_way.values() if copy.due <= now]
        for copy in ended:
            del self._on_way[copy.key]
        return ended

    def last_due(self, keys: Iterable[int]) -> float:
        """The end of the last of `keys`; those without an unfinished copy have ended."""
        return max((self._on_way[key].due for key in keys if key in self._on_way), default=0.0)

    def next_due(self) -> float | None:
        """The end of the next copy; None if there is none."""
        return min((copy.due for copy in self._on_way.values()), default=None)
