"""A replica's backlog and its costs, against slow models that keep the whole history and sum it up each time."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.slow_backlog import SlowBacklog, SlowShare

from plumage.routing.backlog import Backlog, Share
from plumage.routing.context_cost import ContextCost, Stretch


@pytest.mark.parametrize("in_one_piece", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_backlog_is_the_sum_of_its_history(seed: int, in_one_piece: float) -> None:
    rng, now = random.Random(seed), 0.0
    prior = rng.uniform(0.01, 2.0)
    backlog, model = Backlog(prior), SlowBacklog(prior)
    backlog.doubt = model.doubt = rng.choice([0.0, 0.25])
    open_: list[tuple[Share, SlowShare]] = []  # without an end; of streams, without a first token
    for _ in range(400):
        now += rng.choice([-0.1, 0.0, 0.01, 0.4, 30.0])  # a clock may go back, and stand still
        move = rng.random()
        if move < 0.45:
            tokens, seen = rng.choice([0.016, 0.5, 3.0, 40.0]), rng.random() >= in_one_piece
            open_.append((Share(tokens, seen=seen), SlowShare(tokens, seen)))
            backlog.add(open_[-1][0], now)
            model.add(open_[-1][1], now)
        elif move < 0.85 and open_:
            share, slow = open_.pop(rng.randrange(len(open_)))
            if share.seen:
                assert backlog.first_token(share, now)[0] == pytest.approx(model.first_token(slow, now))
            else:
                backlog.ended(share, now)
                model.ended(slow, now)
        elif move < 0.9 and open_:
            share, slow = open_.pop(rng.randrange(len(open_)))
            backlog.give_up(share, now)
            model.give_up(slow, now)
        elif move < 0.94:
            model.prior = rng.uniform(0.01, 2.0)
            backlog.expect(model.prior)
        elif move < 0.97:
            backlog.fade()
            model.fade()
        elif move < 0.98:
            learned = rng.uniform(0.01, 1.0), rng.uniform(1.0, 30.0), rng.uniform(0.01, 2.0)
            backlog.start_from(*learned)
            model.start_from(*learned)
        assert backlog.requests == len(model.waiting)
        assert backlog.c_miss == pytest.approx(model.c_miss)
        assert backlog.bounds() == pytest.approx(model.bounds, abs=1e-9)


def test_busy_time_of_a_replica_with_unstreamed_answers() -> None:
    backlog, shares = Backlog(1.0), [Share(1.0, seen=False) for _ in range(4)]
    backlog.add(shares[0], 100.0)
    backlog.add(shares[1], 101.0)
    assert backlog.ended(shares[1], 104.0) == 4.0
    assert backlog.ended(shares[0], 105.0) == 1.0
    backlog.add(shares[2], 200.0)  # nothing was running for 95 seconds
    backlog.add(shares[3], 201.0)
    backlog.give_up(shares[3], 202.0)
    assert backlog.ended(shares[2], 203.0) == 3.0


class SlowContext:
    """Least squares over all stretches so far, by their normal equations: a·tokens + b·pairs + d·requests, each row
    divided by the root of its tokens. Older rows count less, except while the estimate is as uncertain as at first.
    """

    FORGETTING, SCALE, LONG = 0.999, 10.0, 32.0

    def __init__(self) -> None:
        self.rows: list[tuple[np.ndarray, float]] = []
        self.prompts: list[tuple[float, float, float]] = []
        self.unit = 0.0
        self.kappa = 0.0

    def add(self, hit: float, miss: float, seconds: float, c_miss: float) -> None:
        self.prompts.append((hit, miss, seconds))
        tokens = sum(miss for _, miss, _ in self.prompts)
        if tokens < self.LONG:
            return
        if not self.unit:
            self.unit = c_miss
        if self.unit > 0.0:
            pairs = sum(miss * hit + miss * miss / 2.0 for hit, miss, _ in self.prompts)
            row = np.array([tokens, pairs / self.SCALE, len(self.prompts) / self.SCALE, 0.0]) / np.sqrt(tokens)
            took = sum(seconds for _, _, seconds in self.prompts) / self.unit / np.sqrt(tokens)
            self.rows.append((row, took))
            self.solve()
        self.prompts = []

    def solve(self) -> None:
        information, total = np.eye(4), np.array([1.0, 0.0, 0.0, 0.0])  # the prior: a is one unit, κ none
        for row, took in self.rows:
            forgetting = self.FORGETTING if np.trace(np.linalg.inv(information)) < 4.0 else 1.0
            information = forgetting * information + np.outer(row, row)
            total = forgetting * total + took * row
        a, b, _, _ = np.linalg.solve(information, total)
        self.kappa = float(np.clip(b / (self.SCALE * a), 0.0, 1.0)) if a > 0 else 0.0


@pytest.mark.parametrize("seed", range(8))
def test_kappa_equals_that_of_least_squares_over_all_stretches(seed: int) -> None:
    rng = random.Random(seed)
    kappa, speed = rng.choice([0.02, 0.05, 0.3]), rng.uniform(0.02, 0.5)
    cost, stretch, model, seen = ContextCost(), Stretch(), SlowContext(), set()
    for _ in range(400):
        hit, miss = rng.choice([0.0, 0.5, 6.0, 40.0]), rng.choice([0.016, 1.0, 7.0, 60.0])
        seconds = speed * miss * (1.0 + kappa * (hit + miss / 2.0)) * rng.uniform(0.5, 1.5)
        c_miss = speed * rng.uniform(0.8, 1.2) if rng.random() < 0.9 else 0.0
        stretch.add(hit, miss, seconds)
        cost.learn(stretch, c_miss)
        model.add(hit, miss, seconds, c_miss)
        assert cost.kappa == pytest.approx(model.kappa, abs=1e-6)
        assert stretch.requests == len(model.prompts)
        seen.add(round(cost.kappa, 3))
    assert len(seen) > 5
