"""LBGR as we reconstruct it from the paper (KVRouting §4.2, Alg. 2, App. A).

`LbgrPaper` is our reconstruction of the printed form, not the authors': our copy of the paper lost the names of the
features and the constants. The features below are our choice, and no measurement of it is one of theirs.

predicted end-to-end latency of a replica = ŝ + W + θ·x, the least wins. ŝ = c_hit·hit + c_miss·miss per 1k tokens,
W the decaying work, θ an online linear regression of the residual y − ŝ − W on x = (hit, miss, W, 1).

Print and code differ. The authors' code counts characters by its own tree, learns the bias alone and clips the
residual. The reconstruction is unclipped, takes hits from the directory, and has the code's c_hit = 0 and its 1000 ms
per 1k, of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from plumage import defaults
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage.routing.regression import Features, RecursiveLeastSquares
from plumage.routing.ties import lowest
from plumage.routing.work import DecayingWork

__all__ = ["LbgrPaper"]


@dataclass(slots=True)
class _Routed:
    """State of a ticket: its features, ŝ and W at routing, and the estimator that they belong to."""

    model: object
    x: Features
    service: float
    work: float


class LbgrPaper:
    """Our reconstruction of Algorithm 2: unclipped, all four weights learned, on end-to-end latency."""

    name: ClassVar[str] = "LbgrPaper"

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
            self._learn(ticket.slot, state.x, now - ticket.routed_at - state.service - state.work)

    def _learn(self, slot: int, x: Features, residual: float) -> None:
        self._models[slot].update(x, residual)

    def failed(self, ticket: Ticket, now: float) -> None:
        self._release(ticket, now)

    def _release(self, ticket: Ticket, now: float) -> _Routed | None:
        """Subtract the rest of the ticket's work. None if that was done before, or if the slot has a new replica."""
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
