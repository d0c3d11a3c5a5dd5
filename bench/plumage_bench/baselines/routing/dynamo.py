"""Dynamo's KV router: the smallest sum of blocks to prefill and blocks being decoded at a replica.

cost = weight · max(active prefill + prompt − overlap credit, 0) ÷ block size + decode blocks, with the request's own
blocks counted among those it would decode. Overlap comes from the engines' KV events (credit 1.0 a device block);
with temperature 0 the lowest cost wins, and equal costs are drawn at random.

Source: ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector.rs, as read in mid-2026.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Query, Randomness, ReplicaState

__all__ = ["Dynamo"]


class Dynamo(ScoringPolicy):
    name = "Dynamo"

    def __init__(self, *, rng: Randomness, prefill_weight: float = 1.0, block_size: int = 16) -> None:
        super().__init__(rng=rng)
        self._per_token = prefill_weight / block_size
        self._block_size = block_size

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        hits, tokens, per_token = query.hits, query.tokens, self._per_token
        own = tokens / self._block_size
        return [
            per_token * max(replica.prefill_tokens + tokens - hits.get(replica.slot, 0.0), 0.0)
            + replica.decode_blocks
            + own
            for replica in replicas
        ]
