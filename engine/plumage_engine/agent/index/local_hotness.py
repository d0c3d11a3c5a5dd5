"""Counts which cached prefixes are used again, and keeps their token ids for the warm-up of peers.

A prefix gains a use when an event shows a prompt that continued it differently, or computed it once more. Engines send
no event for a plain hit; routers count those in the pool's hotness (0064). All counts are halved every `period` uses.

Token ids are prompt text. They stay in this process, bounded by `max_ids`, and are deleted with their block. When the
bound is reached, the hottest prefixes keep theirs, up to half of it. Ids of salted prompts are never kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest

from plumage_engine.agent.index.block import Block, Origin
from plumage_engine.agent.index.tier_counts import GONE

__all__ = ["ID", "LocalHotness"]

ID = array("I").itemsize
"""Bytes of a token id, packed."""
MOST_PREFIXES = 20_000  # with uses; beyond it the colder half is forgotten


class LocalHotness:
    """Uses by block (a block stands for the prefix up to its end), and the ids of blocks."""

    def __init__(self, max_ids: int = 8_000_000, period: int = 100_000) -> None:
        self.ids = 0
        self._max_ids = max_ids
        self._period = period
        self._total = 0
        self._uses: dict[Block, int] = {}

    def __len__(self) -> int:
        return len(self._uses)

    def used(self, block: Block) -> None:
        """Counts another use of the prefix up to `block`."""
        self._uses[block] = self._uses.get(block, 0) + 1
        self._total += 1
        if self._total % self._period == 0:
            self._uses = {block: uses // 2 for block, uses in self._uses.items() if uses > 1}
        if len(self._uses) > MOST_PREFIXES:
            self._uses = dict(self.hottest(MOST_PREFIXES // 2))

    def hottest(self, most: int) -> list[tuple[Block, int]]:
        """The most used prefixes that are still cached, with their uses, hottest first."""
        held = (entry for entry in self._uses.items() if entry[0].reach < GONE)
        return nlargest(most, held, key=lambda entry: entry[1])

    def prefixes(self, hottest: Iterable[Block], tokens: int) -> list[tuple[Block, list[int]]]:
        """The given prefixes, hottest first, whose ids are known, of `tokens` ids at most. It leaves out a prefix that
        begins another one. A shared part counts once, because the engine computes it once."""
        chosen: dict[Block, list[int]] = {}
        covered: set[Block] = set()
        for block in hottest:
            ids = None if block in covered else self.prefix(block)
            if ids is None:
                continue
            path = set(_upwards(block))
            cost = sum(_kept(part) for part in path - covered)
            if cost > tokens:
                continue
            tokens -= cost
            covered |= path
            chosen = {other: found for other, found in chosen.items() if other not in path}
            chosen[block] = ids
        return list(chosen.items())

    def prefix(self, block: Block) -> list[int] | None:
        """The token ids of the prompt up to `block`; None when they were not kept."""
        parts = []
        for part in _upwards(block):
            if part.ids is None:
                return None
            parts.append(part.ids)
        return array("I", b"".join(reversed(parts))).tolist()

    def pack(self, origin: Origin, ids: Sequence[int], cached: Iterable[Block]) -> bytes | None:
        """Token ids for new blocks, `ID` bytes each; None where there is no room, or where they must not be kept.
        cached: all blocks; some may lose their ids."""
        if origin.salt or len(ids) > self._max_ids:  # ids that can't fit must not start a walk over all blocks
            return None
        if self.ids + len(ids) > self._max_ids:
            self._shed(cached)
            if self.ids + len(ids) > self._max_ids:
                return None
        self.ids += len(ids)
        return array("I", ids).tobytes()

    def forget(self, block: Block) -> None:
        """Forgets a block that left the cache."""
        self._uses.pop(block, None)
        self._delete_ids(block)

    def clear(self) -> None:
        self.ids = 0
        self._uses.clear()

    def _shed(self, cached: Iterable[Block]) -> None:
        """Delete the ids of all but the hottest prefixes, which may use half of the room."""
        spared: set[Block] = set()
        room = self._max_ids // 2
        for block, _ in self.hottest(MOST_PREFIXES):
            path = [part for part in _upwards(block) if part.ids is not None and part not in spared]
            room -= sum(_kept(part) for part in path)
            if room < 0:
                break
            spared.update(path)
        for block in cached:
            if block not in spared:
                self._delete_ids(block)

    def _delete_ids(self, block: Block) -> None:
        if block.ids is not None:
            self.ids -= _kept(block)
            block.ids = None


def _kept(block: Block) -> int:
    """How many ids it has."""
    return len(block.ids) // ID if block.ids is not None else 0


def _upwards(block: Block) -> Iterator[Block]:
    """The block, its parent, and so on to the start of the prompt."""
    at: Block | None = block
    while at is not None:
        yield at
        at = at.parent
