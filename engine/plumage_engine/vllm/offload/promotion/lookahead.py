"""What the next waiting requests will find in host memory and not in the device: to be copied up before their turn.

HotPrefix (§3.4) guesses from hotness what is asked for next. A queue is no guess: its chunks would be copied up at the
request's turn anyhow, which then waits for the copy. So such a copy costs no traffic that would not come, needs no
step that only decodes, and what is as certain to be used does not go for it (0149).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any

from plumage_engine.vllm.offload.host_tier.residents import Residents
from plumage_engine.vllm.offload.promotion.candidates import Piece
from plumage_engine.vllm.offload.promotion.device_blocks import Device

__all__ = ["Lookahead", "soonest"]

Key = bytes
_AGAIN = 8
"""Steps after which a request that lacked nothing is looked at again: what it needs may have left the device, or come
down to the host."""


def soonest(scheduler: Any, limit: int) -> Iterable[Any]:
    """The first `limit` waiting requests in their order of arrival: vLLM's next, and about FEATHER's, whose choice is
    not known before it is made. None of a queue by priority, which can't be read from its front without a copy. The
    queues are told by what they can do: promotion goes on without what FEATHER imports of vLLM."""
    queue = scheduler.waiting
    oldest = getattr(queue, "oldest", None)
    if oldest is not None:
        return oldest(limit)  # type: ignore[no-any-return]
    return islice(queue, limit) if isinstance(queue, deque) else ()


class Lookahead:
    """waiting: the first so many waiting requests. group: the KV group's number, which vLLM's keys end with."""

    def __init__(self, residents: Residents, device: Device, waiting: Callable[[], Iterable[Any]], group: int) -> None:
        self._residents = residents
        self._device = device
        self._waiting = waiting
        self._suffix = group.to_bytes(4, "big")
        self._due: dict[str, int] = {}
        self._now = 0

    def pieces(self, chunks: int, busy: Collection[Key]) -> list[Piece]:
        """Of the requests that are due for a look, in their order, what is to be copied up: at most `chunks` in all, no
        chunk twice. busy: not these, nor what hangs below them."""
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
        """The hashes of all blocks that those who wait have use for, wherever they are."""
        return set().union(*(request.block_hashes for request in self._waiting()))

    def _missing(self, request: Any, chunks: int, busy: Collection[Key], seen: Collection[Key]) -> Piece:
        """From the first chunk that the device lacks on, what host memory has without a gap."""
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
        """Chunks in the device from the root on, found by halving: a chain leaves from its end."""
        low, high = 0, len(names)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._device.holds(names[middle] + self._suffix) else (low, middle)
        return low
