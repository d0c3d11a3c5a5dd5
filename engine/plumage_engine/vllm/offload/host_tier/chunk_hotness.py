"""How hot chunks of vLLM's offloading are: uses counted by HotPrefix's cuckoo filter, the pool's word before ours.

A chunk's key is the low half of its block hash, as KV events tell it, so that the fleet's word fits without a table.
A request uses all chunks of its prompt once, whether it finds or computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.formula_parser import Formula

__all__ = ["Heats", "Prior"]

_NEVER: Final = 0.0


class Prior(Protocol):
    """Pool-wide hotness, from outside of the engine."""

    def prior(self, key: int) -> float | None:
        """Of the chunk `key`: its uses in the pool, 1 or more; None where the pool said nothing of late."""
        ...


class Heats:
    """table: uses. tokens: in a chunk. admission, promotion: the formulas of the two ranks. pooled: which of the two
    ranks ask `prior` first, as (admission, promotion). failed: told when `prior` raises, which then is asked no more.
    """

    def __init__(
        self,
        table: CuckooFilter,
        *,
        tokens: int,
        admission: Formula,
        promotion: Formula,
        pooled: tuple[bool, bool] = (True, True),
        prior: Prior | None = None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.table = table
        self.tokens = tokens
        self.prior = prior
        self._formulas = (admission, promotion)
        self._pooled = pooled
        self._failed = failed

    def request(self, keys: Sequence[int]) -> None:
        """A request uses the chain `keys`, the root first. Its length costs a step a chunk."""
        self.table.tick()
        self.use(keys, 0)

    def use(self, keys: Sequence[int], above: int) -> None:
        """It also uses `keys`, `above` chunks below its root."""
        touch = self.table.touch
        for depth, key in enumerate(keys, above + 1):
            touch(key, depth)

    def frequency(self, key: int) -> float:
        """Uses of the chunk, also before an eviction: in this engine, or in the pool where that says more."""
        heat = self.table.get(key)
        ours = 0 if heat is None else heat.frequency
        return max(ours, self._ask(key) or 0.0) if self.prior is not None and self._pooled[0] else ours

    def admission(self, key: int) -> float:
        """How much the chunk is worth host memory."""
        return self._rank(key, 0)

    def promotion(self, key: int) -> float:
        """How much it is worth the device's memory before anyone asks."""
        return self._rank(key, 1)

    def _rank(self, key: int, which: int) -> float:
        """The pool knows the hottest prefixes only, in numbers of its own: those come first, and what it does not name
        after them, by local uses, which also decide between equals."""
        heat = self.table.get(key)
        ours = _NEVER if heat is None else self._formulas[which](heat.frequency, heat.clock, self.tokens, heat.depth)
        if self.prior is None or not self._pooled[which]:
            return ours
        pooled = self._ask(key) or 0.0
        return ours if self.prior is None else pooled + ours / (1.0 + abs(ours))

    def _ask(self, key: int) -> float | None:
        try:
            return None if self.prior is None else self.prior.prior(key)
        except Exception as error:
            self.prior = None
            self._failed(error)
            return None
