"""Finds what the next waiting requests have in host memory and not on the device, to copy it before their turn.

HotPrefix (§3.4) guesses from hotness which prefix is requested next. The waiting queue is certain: its chunks would be
copied at the request's turn anyway, and the request would wait for it. So this copy adds no traffic, needs no step
that only decodes, and does not evict what other waiting requests need (decision 0149).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any

from plumage_engine.vllm.offload.host_tier.residents import Residents
from plumage_engine.vllm.offload.promotion.candidates import Piece
from plumage_engine.vllm.offload.promotion.device_blocks import DeviceBlocks

__all__ = ["Lookahead", "next_waiting"]

Key = bytes
_AGAIN = 8
"""Steps after which a request that lacked nothing is checked again.

Its chunks may have left the device or been stored in host memory.
"""


def next_waiting(scheduler: Any, limit: int) -> Iterable[Any]:
    """The first `limit` waiting requests in their order of arrival: vLLM's next ones, and nearly FEATHER's.

    None of a queue by priority, whose front can't be read without a copy. The queue's type is not imported, so
    promotion does not depend on FEATHER's names of vLLM.
    """
    queue = scheduler.waiting
    oldest = getattr(queue, "oldest", None)
    if oldest is not None:
        return oldest(limit)  # type: ignore[no-any-return]
    return islice(queue, limit) if isinstance(queue, deque) else ()


class Lookahead:
    """waiting: the next waiting requests.
    group: the KV group's number, the end of vLLM's keys.
    """

    def __init__(
        self, residents: Residents, device: DeviceBlocks, waiting: Callable[[], Iterable[Any]], group: int
    ) -> None:
        self._residents = residents
        self._device = device
        self._waiting = waiting
        self._suffix = group.to_bytes(4, "big")
        self._due: dict[str, int] = {}
        self._now = 0

    def pieces(self, chunks: int, busy: Collection[Key]) -> list[Piece]:
        """What to copy for the requests that are due for a check, in their order: at most `chunks`, no chunk twice.

        busy: excluded chunks, and those below them.
        """
        self._now += 1
        found: list[Piece] = []
        seen: set[Key] = set()
        due: dict[str, int] = {}
        for request in self._waiting():
            due[request.request_id] = step = self._due.get(request.request_id, self._now)
            if step > self._now or chunks <= 0:
                continue
            piece = self._missing(request, chunks, busy, seen)
            if piece.keys:
                found.append(piece)
                seen.update(piece.keys)
                chunks -= len(piece.keys)
            else:
                due[request.request_id] = self._now + _AGAIN
        self._due = due
        return found

    def wanted(self) -> set[bytes]:
        """The hashes of all blocks that waiting requests need, cached or not."""
        return set().union(*(request.block_hashes for request in self._waiting()))

    def _missing(self, request: Any, chunks: int, busy: Collection[Key], seen: Collection[Key]) -> Piece:
        """The chunks in host memory without a gap, from the first that the device lacks."""
        names = request.block_hashes
        start = self._held(names)
        keys: list[Key] = []
        for name in names[start : start + max(0, chunks)]:
            key = name + self._suffix
            chunk = self._residents.get(key)
            if chunk is None or not chunk.is_ready or key in busy or key in seen:
                break
            keys.append(key)
        return Piece(tuple(keys), names[start - 1] + self._suffix if start else None, start)

    def _held(self, names: list[bytes]) -> int:
        """Chunks on the device from the root on, by binary search: a chain is evicted from its end."""
        low, high = 0, len(names)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._device.holds(names[middle] + self._suffix) else (low, middle)
        return low
