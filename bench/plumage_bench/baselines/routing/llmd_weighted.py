"""llm-d's weighted scorers, its default until v0.10: 3·prefix + 2·queue + 2·(1 − KV usage), the highest wins.

prefix = matched ÷ total blocks, by an approximate index of 31,250 least-recently-used entries a pod (or, `precise`, by
the engines' events); queue = (max − q) ÷ (max − min) over the pods' waiting queues. KServe adds a "no hit, least
recently used" scorer of weight 2: if no pod has a hit, the pod that has been longest without a cold request scores
highest.

Source: llm-d/llm-d-router, pkg/epp/framework/plugins/scheduling/scorer (prefix, preciseprefixcache, queuedepth,
kvcacheutilization, nohitlru), as read in mid-2026; KServe (kserve/kserve) configures it for its LLMInferenceService.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage_bench.baselines.routing.prefix_index import PrefixIndex

__all__ = ["LlmDWeighted"]


class LlmDWeighted(ScoringPolicy):
    name = "LlmDWeighted"

    def __init__(
        self,
        *,
        rng: Randomness,
        prefix_weight: float = 3.0,
        queue_weight: float = 2.0,
        kv_weight: float = 2.0,
        cold_weight: float = 0.0,
        precise: bool = False,
        index_entries: int = 31_250,
    ) -> None:
        super().__init__(rng=rng)
        self._weights = (prefix_weight, queue_weight, kv_weight, cold_weight)
        self._precise = precise
        self._index = PrefixIndex(index_entries)
        self._cold_turn: dict[int, int] = {}
        self._cold_requests = 0
        self._was_cold = False

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        prefix_weight, queue_weight, kv_weight, cold_weight = self._weights
        prefixes = self._prefixes(query, replicas)
        self._was_cold = not any(prefixes)
        queues = [replica.waiting for replica in replicas]
        most, width = max(queues), max(queues) - min(queues)
        cold = self._cold_scores(replicas) if cold_weight else [0.0] * len(replicas)
        return [
            -prefix_weight * prefix
            - queue_weight * ((most - queue) / width if width else 1.0)
            - kv_weight * (1.0 - replica.kv_usage)
            - cold_weight * chill
            for replica, prefix, queue, chill in zip(replicas, prefixes, queues, cold, strict=True)
        ]

    def _prefixes(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        if self._precise:
            return [query.hits.get(replica.slot, 0.0) / max(query.tokens, 1.0) for replica in replicas]
        matched = self._index.match(query.chunks)
        return [matched.get(replica.slot, 0) / max(len(query.chunks), 1) for replica in replicas]

    def _cold_scores(self, replicas: Sequence[ReplicaState]) -> list[float]:
        """1 for the pod that has been longest without a cold request, 0 for the most recent one; all equal if there was
        a hit."""
        if not self._was_cold or len(replicas) == 1:
            return [0.0] * len(replicas)
        turns = sorted(self._cold_turn.get(replica.slot, 0) for replica in replicas)
        place = {turn: rank / (len(turns) - 1) for rank, turn in reversed(list(enumerate(turns)))}
        return [1.0 - place[self._cold_turn.get(replica.slot, 0)] for replica in replicas]

    def routed(self, query: Query, choice: Choice) -> Ticket:
        if not self._precise:
            self._index.insert(choice.slot, query.chunks)
        if self._was_cold:
            self._cold_requests += 1
            self._cold_turn[choice.slot] = self._cold_requests
        return super().routed(query, choice)

    def forget(self, slot: int) -> None:
        self._index.forget(slot)
        self._cold_turn.pop(slot, None)
