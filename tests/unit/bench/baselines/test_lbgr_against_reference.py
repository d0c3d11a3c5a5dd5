"""LBGR's printed form and the authors' code against the formulas of KVRouting (§4.2, App. A) over the whole history.

predicted latency of a replica = ŝ + W + θ·x, ŝ = c_hit·hit + c_miss·miss (per 1k), x = (hit, miss, W, 1)

The model keeps every request. W sums what is left of ŝ over the running requests. θ minimises the discounted sum of
squares, λ^(n−i)·(residual_i − θ·x_i)² + λⁿ·|θ|²/P₀, solved again for each question.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.routing import Query, ReplicaState, RoutingPolicy, Ticket
from plumage.routing.lbgr_paper import LbgrPaper
from plumage_bench.baselines.routing.lbgr_code import LbgrCode

FORGETTING, INITIAL_VARIANCE = 0.992, 1e6
DECAY, INTERVAL = 31 / 32, 0.020
C_HIT, C_MISS = 0.07, 0.9
REPLICAS = 3


@dataclass
class Sent:
    """One request as the model remembers it. hit, miss: thousands of tokens; work: W when it was routed."""

    slot: int
    at: float
    hit: float
    miss: float
    work: float
    chunks: tuple[int, ...]
    ended: float | None = None
    latency: float | None = None  # None while it runs, and for ever if it failed


@dataclass
class SlowPaper:
    c_hit: float = C_HIT
    history: list[Sent] = field(default_factory=list)
    learned: list[Sent] = field(default_factory=list)  # in the order of their ends

    def service(self, hit: float, miss: float) -> float:
        return self.c_hit * hit + C_MISS * miss

    def work(self, slot: int, now: float) -> float:
        here = [one for one in self.history if one.slot == slot and one.ended is None]
        return sum(self.service(one.hit, one.miss) * DECAY ** ((now - one.at) / INTERVAL) for one in here)

    def seen(self, query: Query, slot: int) -> tuple[float, float]:
        hit = min(query.hits.get(slot, 0.0), query.tokens) / 1000
        return hit, query.tokens / 1000 - hit

    def scores(self, query: Query, replicas: list[ReplicaState]) -> list[float]:
        return [self.score(query, replica.slot, replica.foreign_work) for replica in replicas]

    def score(self, query: Query, slot: int, foreign: float) -> float:
        hit, miss = self.seen(query, slot)
        work = self.work(slot, query.now) + foreign
        return self.service(hit, miss) + work + float(self.theta(slot) @ np.array([hit, miss, work, 1.0]))

    def theta(self, slot: int) -> np.ndarray:
        rows = [(self.features(one), self.residual(one)) for one in self.learned if one.slot == slot]
        left, right = np.eye(4) / INITIAL_VARIANCE * FORGETTING ** len(rows), np.zeros(4)
        for age, (x, y) in enumerate(reversed(rows)):
            left += FORGETTING**age * np.outer(x, x)
            right += FORGETTING**age * y * x
        return np.linalg.solve(left, right)

    def features(self, one: Sent) -> np.ndarray:
        return np.array([one.hit, one.miss, one.work, 1.0])

    def residual(self, one: Sent) -> float:
        assert one.latency is not None
        return one.latency - self.service(one.hit, one.miss) - one.work

    def allowed(self, scores: list[float]) -> set[int]:
        """Slots that may win: replicas that differ only by rounding are equal."""
        return {place for place, score in enumerate(scores) if score <= min(scores) + 1e-6}

    def send(self, query: Query, slot: int) -> None:
        hit, miss = self.seen(query, slot)
        self.history.append(Sent(slot, query.now, hit, miss, self.work(slot, query.now), tuple(query.chunks)))

    def end(self, number: int, now: float, latency: float | None) -> None:
        one = self.history[number]
        one.ended, one.latency = now, latency
        if latency is not None:
            self.learned.append(one)


class SlowCode(SlowPaper):
    """Characters of its own tree, only the bias, clipped. The first wins unless a later one is a millisecond better."""

    def __init__(self) -> None:
        super().__init__(c_hit=0.0)

    def seen(self, query: Query, slot: int) -> tuple[float, float]:
        def common(prompt: tuple[int, ...]) -> int:
            same = [ours == theirs for ours, theirs in zip(query.chunks, prompt, strict=False)]
            return same.index(False) if False in same else len(same)

        depth = max((common(one.chunks) for one in self.history if one.slot == slot), default=0)
        hit = len(query.text) * depth / len(query.chunks) / 1000
        return hit, len(query.text) / 1000 - hit

    def features(self, one: Sent) -> np.ndarray:
        return np.array([0.0, 0.0, 0.0, 1.0])

    def residual(self, one: Sent) -> float:
        return max(super().residual(one), 0.001)

    def allowed(self, scores: list[float]) -> set[int]:
        winners = set()
        for slack in (-1e-7, 0.0, 1e-7):  # at an advantage of exactly a millisecond both may win
            best = 0
            for place, score in enumerate(scores):
                if score < scores[best] - 0.001 + slack:
                    best = place
            winners.add(best)
        return winners


def question(rng: random.Random, now: float) -> Query:
    tokens = float(rng.choice([200, 1000, 3000, 8000]))
    hits = {slot: rng.choice([0.0, 100.0, 900.0, 2500.0]) for slot in range(REPLICAS) if rng.random() < 0.6}
    path: tuple[int, ...] = ()
    for _ in range(rng.randint(1, 4)):
        path = (*path, 1 + 3 * (path[-1] if path else 0) + rng.randrange(3))
    return Query(now, tokens, hits, path, b"x" * int(4 * tokens))


def follow(policy: RoutingPolicy, model: SlowPaper, seed: int, count: int, tolerance: float) -> None:
    rng, now = random.Random(seed), 0.0
    under_way: list[tuple[int, Ticket]] = []
    for number in range(count):
        now += rng.expovariate(6.0)
        query = question(rng, now)
        replicas = [ReplicaState(slot, foreign_work=rng.choice([0.0, 0.0, 0.4])) for slot in range(REPLICAS)]
        choice, expected = policy.choose(query, replicas), model.scores(query, replicas)
        assert list(choice.scores) == pytest.approx(expected, rel=tolerance, abs=tolerance)
        assert choice.slot in model.allowed(list(choice.scores))
        under_way.append((number, policy.routed(query, choice)))
        model.send(query, choice.slot)
        while under_way and rng.random() < 0.6:
            ended, ticket = under_way.pop(rng.randrange(len(under_way)))
            now += rng.uniform(0.0, 0.05)
            if rng.random() < 0.15:
                policy.failed(ticket, now)
                model.end(ended, now, None)
            else:
                policy.finished(ticket, now, None)
                model.end(ended, now, now - ticket.routed_at)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_printed_form_follows_its_formulas(seed: int) -> None:
    policy = LbgrPaper(rng=random.Random(seed), c_hit=C_HIT, c_miss=C_MISS)
    follow(policy, SlowPaper(), seed, 80, 1e-4)  # P₀ = 1e6 costs the recursion some digits


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_authors_code_follows_its_formulas(seed: int) -> None:
    policy = LbgrCode(rng=random.Random(seed), c_miss=C_MISS)
    follow(policy, SlowCode(), seed, 80, 1e-7)
