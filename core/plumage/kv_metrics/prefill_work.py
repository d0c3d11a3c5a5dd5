"""Floating-point operations of prefill, and which of them repeat earlier ones (RCR of the article, section 3.1).

RCR = repeated ÷ all prefill FLOPs. A token's work repeats if the KV of its block was computed before: the cache has
lost the block, or another request computes it at the same time. Blocks have chained names, so equal names mean equal
tokens from the beginning.

    FLOPs of tokens a … b−1 = (b − a) · row + pair · Σ (p + 1), p = a … b−1

row: two for each weight of the layers that a token passes. pair: a query with one key and its value in all layers. Not
counted are embeddings, norms, and the output layer, which needs one token of a prompt. Layers that attend to a window
count as if they attended to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plumage.errors import ConfigurationError
from plumage.kv_metrics.seen_blocks import SeenBlocks

__all__ = ["PrefillCost", "PrefillWork"]


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """FLOPs: `row` of a token by itself, `pair` of a query and a key."""

    row: float
    pair: float

    @classmethod
    def of_model(
        cls, *, layers: int, hidden: int, heads: int, kv_heads: int, head_size: int, intermediate: int, experts: int = 1
    ) -> PrefillCost:
        """Of a decoder with gated MLPs. heads: of queries. intermediate: width of one MLP. experts: MLPs that a token
        passes in each layer."""
        attention = hidden * head_size * 2 * (heads + kv_heads)  # queries, output, keys, values
        mlp = 3 * hidden * intermediate * experts
        return cls(2.0 * layers * (attention + mlp), 4.0 * layers * heads * head_size)

    def flops(self, start: int, end: int) -> float:
        """Of the tokens at positions start … end − 1."""
        tokens = end - start
        return tokens * (self.row + self.pair * (start + end + 1) / 2)


class PrefillWork:
    """total, repeated: FLOPs since the start. size: tokens of a block."""

    def __init__(self, cost: PrefillCost, seen: SeenBlocks, size: int) -> None:
        if size < 1:
            raise ConfigurationError(f"a block needs at least one token, got {size}")
        self.total = 0.0
        self.repeated = 0.0
        self._cost = cost
        self._seen = seen
        self._size = size

    def touched(self, start: int, end: int) -> slice:
        """The blocks that contain positions start … end − 1."""
        return slice(start // self._size, -(-end // self._size))

    def prefilled(self, start: int, end: int, names: Sequence[int]) -> None:
        """Positions start … end − 1 of a request were computed. names: of its blocks in `touched`; the last ones may
        have none, because only full blocks do."""
        cost, seen, size, at = self._cost, self._seen, self._size, start // self._size * self._size
        self.total += cost.flops(start, end)
        since: int | None = None  # where a run of repeated blocks begins
        for name in names:
            following = at + size
            if seen.add(name) if following <= end else name in seen:
                since = max(start, at) if since is None else since
            elif since is not None:
                self.repeated += cost.flops(since, at)
                since = None
            at = following
        if since is not None:
            self.repeated += cost.flops(since, min(end, at))

    def decoded(self, names: Sequence[int]) -> None:
        """Decoding filled these blocks. Their first computation is no prefill, but computing them again is."""
        for name in names:
            self._seen.add(name)
