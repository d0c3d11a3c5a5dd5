"""LBGR as in its authors' code (KVRouting §4.2, App. E), which differs from their paper: see `LbgrPaper`.

It counts characters by its own tree, with c_hit = 0 and c_miss = 1000 ms per 1k characters, and learns only the bias.
It clips the residual to ≥ 1 ms, so an over-estimate is never corrected. A later replica must win by more than 1 ms, so
ties go to the first in the list.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage import defaults
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage.routing.lbgr_paper import LbgrPaper
from plumage.routing.regression import Features
from plumage_bench.baselines.routing.prefix_index import PrefixIndex

__all__ = ["LbgrCode"]


class LbgrCode(LbgrPaper):
    """The authors' code: characters, its own tree, a clipped bias, the first of equal replicas."""

    name = "LbgrCode"

    _MARGIN = 0.001  # a later replica must win by more than a millisecond
    _LEAST_RESIDUAL = 0.001

    def __init__(
        self,
        *,
        rng: Randomness,
        c_miss: float = defaults.MISS_MILLISECONDS_PER_KILOTOKEN / 1000,
        forgetting: float = float(defaults.RLS_FORGETTING),
        decay_interval: float = defaults.DECAY_INTERVAL_MILLISECONDS / 1000,
        characters_per_token: float = 4.0,
        chunk_characters: int = 256,
        tree_characters: int = 2**24,
    ) -> None:
        super().__init__(rng=rng, c_miss=c_miss, forgetting=forgetting, decay_interval=decay_interval)
        self._characters_per_token = characters_per_token
        self._tree = PrefixIndex(max(tree_characters // chunk_characters, 1))

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        self._grow(replicas)
        believed = self._believed(query)
        scores = [self._predict(believed, replica.slot, replica.foreign_work) for replica in replicas]
        best = 0
        for index, score in enumerate(scores):
            if score < scores[best] - self._MARGIN:
                best = index
        return Choice(replicas[best].slot, scores)

    def routed(self, query: Query, choice: Choice) -> Ticket:
        ticket = super().routed(self._believed(query), choice)
        self._tree.insert(choice.slot, query.chunks)
        ticket.tokens = query.tokens
        ticket.hit_tokens = ticket.hit_tokens / self._characters_per_token
        return ticket

    def _believed(self, query: Query) -> Query:
        """The query in characters, with the hits of the router's own tree."""
        characters = float(len(query.text)) or query.tokens * self._characters_per_token
        per_chunk = characters / max(len(query.chunks), 1)
        hits = {slot: depth * per_chunk for slot, depth in self._tree.match(query.chunks).items()}
        return Query(query.now, characters, hits, query.chunks)

    def _learn(self, slot: int, x: Features, residual: float) -> None:
        super()._learn(slot, (0.0, 0.0, 0.0, 1.0), max(residual, self._LEAST_RESIDUAL))

    def forget(self, slot: int) -> None:
        super().forget(slot)
        self._tree.forget(slot)
