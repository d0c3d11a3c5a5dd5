"""The requests that decode, and a clock that counts their steps for them.

Each decoding request gains one token a step. Counting that request by request would cost O(batch) a step. Instead a
shared clock counts steps, and each event of a request is stored under the clock value of its time. Its end is in a
heap. Its block boundaries are in one of `block_size` buckets: KV at a boundary is there again every `block_size` steps.
So a step costs its events only.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from plumage_engine.simulator.engine.request import State, Tracked
from plumage_engine.simulator.engine.shared_prefix import SharedPrefix

__all__ = ["Decodes"]


class Decodes:
    """The decoding requests of one engine. `context`: their KV tokens in all."""

    def __init__(self, block_size: int) -> None:
        self.context = 0
        self._block_size = block_size
        self._clock = 0
        self._tickets = 0
        self._members: dict[Tracked, None] = {}
        self._boundaries: list[dict[Tracked, None]] = [{} for _ in range(block_size)]
        self._ends: list[tuple[int, int, Tracked]] = []
        self._shared = SharedPrefix()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._members)

    @property
    def shared_tokens(self) -> int:
        """Tokens of the full blocks that all members have in common."""
        return self._shared.blocks * self._block_size

    def enter(self, tracked: Tracked) -> None:
        """`tracked` has its KV computed and at least one token generated; it decodes from the next step on."""
        tracked.state = State.DECODING
        tracked.entered = self._clock
        self._tickets += 1
        tracked.ticket = self._tickets
        self._members[tracked] = None
        self._boundary(tracked)[tracked] = None
        end = self._clock + tracked.request.output_tokens - tracked.generated
        heappush(self._ends, (end, tracked.ticket, tracked))
        self._shared.add(tracked, tracked.hashes)
        self.context += tracked.computed

    def leave(self, tracked: Tracked) -> None:
        """Update the request's own counts and remove it; the caller sets its new state."""
        del self._members[tracked]
        del self._boundary(tracked)[tracked]
        self._shared.remove(tracked)
        steps = self._clock - tracked.entered
        tracked.computed += steps
        tracked.generated += steps
        tracked.ticket = -1
        self.context -= tracked.computed

    def computed(self, tracked: Tracked) -> int:
        """KV tokens of a member now."""
        return tracked.computed + self._clock - tracked.entered

    def needing_block(self) -> dict[Tracked, None]:
        """Members whose next token starts a block."""
        return self._boundaries[self._clock % self._block_size]

    def filling_block(self) -> dict[Tracked, None]:
        """Members whose next token fills a block."""
        return self._boundaries[(self._clock + 1) % self._block_size]

    def ending(self) -> list[Tracked]:
        """Members that get their last token in the coming step. Call it once a step."""
        found = []
        while self._ends and self._ends[0][0] <= self._clock + 1:
            _, ticket, tracked = heappop(self._ends)
            if tracked.ticket == ticket:
                found.append(tracked)
        return found

    def advance(self) -> None:
        """Counts a step: every member has one more token."""
        self._clock += 1
        self.context += len(self._members)

    def _boundary(self, tracked: Tracked) -> dict[Tracked, None]:
        return self._boundaries[(tracked.entered - tracked.computed) % self._block_size]
