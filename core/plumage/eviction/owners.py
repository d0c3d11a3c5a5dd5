"""Which share of its blocks each tenant uses again, and how much earlier those of a flood are evicted.

The salt of its requests names a tenant, so two tenants never share a block. A tenant that sends prompts of its own only
computes many blocks and uses none again. By recency and frequency they would displace blocks that its neighbours will
use. So each tenant's *return* is counted: of the blocks that it computed, the share that was used a second time. Where
it is below half of the others' return, blocks that were used once count as unused for longer. The added time is at
most `_EARLY` cache sizes, in proportion to the square of the shortfall. A block that was used twice has no
disadvantage.

Blocks without a salt belong to nobody, and a single tenant has no others: for both nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

__all__ = ["Owners"]

_EARLY: Final = 8.0  # cache sizes; 16 gave no more (0313)
_LEAST: Final = 0.5  # of the others' return; above it a tenant has no disadvantage
_PRIOR: Final = 0.125  # cache sizes of returned blocks that a tenant is assumed to have had, at the others' return
_FADES: Final = 4  # a cache size of time
_MOST: Final = 1024  # tenants


class _Uses:
    """computed, again: blocks, faded."""

    __slots__ = ("again", "computed")

    def __init__(self) -> None:
        self.computed = self.again = 0.0


class Owners:
    """The returns of the tenants seen last, at most 1,024.

    capacity: blocks of the cache. window: cache sizes of blocks used after which a use counts 1/e.
    """

    def __init__(self, capacity: int, window: float) -> None:
        self._capacity = capacity
        self._every = max(1, capacity // _FADES)
        self._fade = math.exp(-1.0 / (_FADES * window))
        self._uses: dict[Hashable, _Uses] = {}
        self._all = _Uses()
        self._faded = 0

    def __len__(self) -> int:
        return len(self._uses)

    def computed(self, owner: Hashable, blocks: int) -> None:
        """Counts blocks that the tenant computed and that nobody had."""
        if owner is not None:
            self._of(owner).computed += blocks
            self._all.computed += blocks

    def again(self, owner: Hashable, blocks: int) -> None:
        """Blocks of the tenant, cached or evicted, are used for the second time."""
        if owner is not None:
            self._of(owner).again += blocks
            self._all.again += blocks

    def early(self, owner: Hashable, time: int) -> float:
        """Blocks of time by which blocks that the tenant used once are evicted earlier. time: blocks used so far."""
        if owner is None:
            return 0.0
        if time - self._faded >= self._every:
            self._age(time)
        uses = self._uses.get(owner)
        if uses is None or len(self._uses) < 2:
            return 0.0
        again, computed = self._all.again - uses.again, self._all.computed - uses.computed
        if again < 1.0 or computed < 1.0:  # the others have shown nothing yet
            return 0.0
        others, prior = min(1.0, again / computed), _PRIOR * self._capacity
        own = (uses.again + prior) / (uses.computed + prior / others)
        lacking = 1.0 - min(1.0, own / (_LEAST * others))
        return _EARLY * self._capacity * lacking * lacking

    def _of(self, owner: Hashable) -> _Uses:
        uses = self._uses.pop(owner, None)
        if uses is None:
            uses = _Uses()
            if len(self._uses) >= _MOST:
                del self._uses[next(iter(self._uses))]
        self._uses[owner] = uses  # the last of the order
        return uses

    def _age(self, time: int) -> None:
        factor = self._fade ** ((time - self._faded) / self._every)
        self._faded = time
        for uses in (*self._uses.values(), self._all):
            uses.computed *= factor
            uses.again *= factor
