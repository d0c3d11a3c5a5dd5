"""How hot the chunks of vLLM's offloading are: the pool's hotness first, then uses counted by HotPrefix's cuckoo
filter.

A chunk's key is the low half of its block hash, as in KV events, so the pool's report needs no translation. A request
uses all chunks of its prompt once, whether it finds or computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.priority_formula import Formula

__all__ = ["ChunkHotness", "Prior"]

_NEVER: Final = 0.0


class Prior(Protocol):
    """Hotness from outside of the engine, measured by the pool."""

    def prior(self, key: int) -> float | None:
        """The pool's uses of the chunk `key`, 1 or more; None where no valid report names it."""
        ...


class ChunkHotness:
    """table: counted uses.
    tokens: in a chunk.
    admission, promotion: the formulas of the two ranks.
    pooled: which of the two ranks read `prior` first, as (admission, promotion).
    failed: called when `prior` raises, which is not asked again then.
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
        """Counts a request that uses the chain `keys`, the root first. Costs one step a chunk."""
        self.table.tick(1)
        self.use(keys, 0)

    def use(self, keys: Sequence[int], above: int) -> None:
        """Counts that the request also uses `keys`, `above` chunks below its root."""
        self.table.tick(0, len(keys))
        self.table.touch_chain(keys, above + 1)

    def frequency(self, key: int) -> float:
        """Uses of the chunk, including those before an eviction: the larger of this engine's and the pool's."""
        uses = self.table.get(key)
        ours = 0 if uses is None else uses.frequency
        return max(ours, self._pool_uses(key) or 0.0) if self.prior is not None and self._pooled[0] else ours

    def admission(self, key: int) -> float:
        """The chunk's rank for host memory."""
        return self._rank(key, 0)

    def promotion(self, key: int) -> float:
        """The chunk's rank for the device's memory before a request needs it."""
        return self._rank(key, 1)

    def _rank(self, key: int, which: int) -> float:
        """The pool reports only the hottest prefixes, on its own scale, so these rank first.

        Other chunks follow by local uses, which also decide between equals.
        """
        uses = self.table.get(key)
        ours = _NEVER if uses is None else self._formulas[which](uses.frequency, uses.clock, self.tokens, uses.depth)
        if self.prior is None or not self._pooled[which]:
            return ours
        pooled = self._pool_uses(key) or 0.0
        return ours if self.prior is None else pooled + ours / (1.0 + abs(ours))

    def _pool_uses(self, key: int) -> float | None:
        try:
            return None if self.prior is None else self.prior.prior(key)
        except Exception as error:
            self.prior = None
            self._failed(error)
            return None
