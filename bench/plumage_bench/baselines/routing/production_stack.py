"""vLLM production-stack's two prefix routers.

`prefixaware`: the longest match in its own tree of prompts; equal ones are drawn at random. It ignores load, so a
popular prefix overloads one pod (production-stack#1035). Its tree is unbounded (#687); the one here has at most
`index_entries`. `loadaware`: matched ÷ prompt − β·(load − mean) ÷ max(1, mean), β = 1; the highest value wins.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage_bench.baselines.routing.prefix_index import PrefixIndex

__all__ = ["ProductionStack"]


class ProductionStack(ScoringPolicy):
    name = "ProductionStack"

    def __init__(
        self, *, rng: Randomness, load_aware: bool = False, beta: float = 1.0, index_entries: int = 2_000_000
    ) -> None:
        super().__init__(rng=rng)
        self._beta = beta if load_aware else 0.0
        self._index = PrefixIndex(index_entries)

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        matched = self._index.match(query.chunks)
        total = max(len(query.chunks), 1)
        shares = [matched.get(replica.slot, 0) / total for replica in replicas]
        if not self._beta:
            return [-share for share in shares]
        mean = sum(replica.routed for replica in replicas) / len(replicas)
        scale = self._beta / max(1.0, mean)
        return [scale * (replica.routed - mean) - share for share, replica in zip(shares, replicas, strict=True)]

    def routed(self, query: Query, choice: Choice) -> Ticket:
        self._index.insert(choice.slot, query.chunks)
        return super().routed(query, choice)

    def forget(self, slot: int) -> None:
        self._index.forget(slot)
