"""LBGR as we reconstruct it from the paper, and as its authors' code runs it (KVRouting §4.2, Alg. 2, App. A, E).

`LbgrPaper` is our reconstruction of the printed form, not the authors': our copy of the paper lost the names of the
features and the constants. The features below are our choice, and no measurement of it is one of theirs.

predicted end-to-end latency of a replica = ŝ + W + θ·x, the least wins. ŝ = c_hit·hit + c_miss·miss per 1k tokens,
W the decaying work, θ an online linear regression of the residual y − ŝ − W on x = (hit, miss, W, 1).

Print and code differ. The code (`LbgrCode`) counts characters by its own tree, c_hit = 0, c_miss = 1000 ms per 1k
characters, learns the bias alone, clips the residual at ≥ 1 ms (so an over-estimate is never corrected) and lets a
later replica win only by more than 1 ms, so that ties go to the first in the list. The reconstruction is unclipped,
takes hits from the directory, and has the code's c_hit and its 1000 ms per 1k, of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plumage import defaults
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage.routing.prefix_index import PrefixIndex
from plumage.routing.regression import Features, RecursiveLeastSquares
from plumage.routing.ties import lowest
from plumage.routing.work import DecayingWork

__all__ = ["LbgrCode", "LbgrPaper"]


@dataclass(slots=True)
class _Routed:
    """What a ticket remembers: its features, ŝ and W at routing, and whose estimator they belong to."""

    model: object
    x: Features
    service: float
    work: float


class LbgrPaper:
    """Our reconstruction of Algorithm 2: unclipped, all four weights learned, on end-to-end latency."""

    name = "LbgrPaper"

    def __init__(
        self,
        *,
        rng: Randomness,
        c_hit: float = defaults.HIT_MILLISECONDS_PER_KILOTOKEN / 1000,
        c_miss: float = defaults.MISS_MILLISECONDS_PER_KILOTOKEN / 1000,
        forgetting: float = float(defaults.RLS_FORGETTING),
        decay: float = 31 / 32,
        decay_interval: float = defaults.DECAY_INTERVAL_MILLISECONDS / 1000,
    ) -> None:
        self._rng = rng
        self._c_hit = c_hit
        self._c_miss = c_miss
        self._new_model: Callable[[], RecursiveLeastSquares] = lambda: RecursiveLeastSquares(forgetting=forgetting)
        self._models: list[RecursiveLeastSquares] = []
        self._work = DecayingWork(factor=decay, interval=decay_interval)

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        self._grow(replicas)
        return lowest(replicas, [self._predict(query, r.slot, r.foreign_work) for r in replicas], self._rng)

    def _predict(self, query: Query, slot: int, foreign: float) -> float:
        x, service = self._features(query, slot, foreign)
        return service + x[2] + self._models[slot].predict(x)

    def _features(self, query: Query, slot: int, foreign: float) -> tuple[Features, float]:
        hit = min(query.hits.get(slot, 0.0), query.tokens) / 1000.0
        miss = query.tokens / 1000.0 - hit
        work = self._work.at(slot, query.now) + foreign
        return (hit, miss, work, 1.0), self._c_hit * hit + self._c_miss * miss

    def routed(self, query: Query, choice: Choice) -> Ticket:
        slot = choice.slot
        x, service = self._features(query, slot, 0.0)
        self._work.add(slot, service, query.now)
        model = self._models[slot]
        state = _Routed(model, x, service, x[2])
        predicted = service + x[2] + model.predict(x) if model.updates else None
        hit = min(query.hits.get(slot, 0.0), query.tokens)
        return Ticket(slot, query.now, query.tokens, hit, None, predicted, state)

    def first_token(self, ticket: Ticket, now: float) -> None:
        return

    def finished(self, ticket: Ticket, now: float, cached_tokens: float | None) -> None:
        state = self._release(ticket, now)
        if state is not None:
            self._learn(ticket.slot, state, now - ticket.routed_at)

    def _learn(self, slot: int, state: _Routed, latency: float) -> None:
        self._models[slot].update(state.x, latency - state.service - state.work)

    def failed(self, ticket: Ticket, now: float) -> None:
        self._release(ticket, now)

    def _release(self, ticket: Ticket, now: float) -> _Routed | None:
        """Take back what is left of the ticket's work; None if told before, or if the slot changed hands."""
        state, ticket.state = ticket.state, None
        if not isinstance(state, _Routed) or self._models[ticket.slot] is not state.model:
            return None
        self._work.release(ticket.slot, state.service, ticket.routed_at, now)
        return state

    def forget(self, slot: int) -> None:
        if slot < len(self._models):
            self._models[slot] = self._new_model()
            self._work.clear(slot)

    def _grow(self, replicas: Sequence[ReplicaState]) -> None:
        slots = 1 + max(replica.slot for replica in replicas)
        while len(self._models) < slots:
            self._models.append(self._new_model())
        self._work.grow(slots)


class LbgrCode(LbgrPaper):
    """The authors' code: characters, its own tree, a clipped bias, the first of equals."""

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

    def _learn(self, slot: int, state: _Routed, latency: float) -> None:
        residual = max(latency - state.service - state.work, self._LEAST_RESIDUAL)
        self._models[slot].update((0.0, 0.0, 0.0, 1.0), residual)

    def forget(self, slot: int) -> None:
        super().forget(slot)
        self._tree.forget(slot)
