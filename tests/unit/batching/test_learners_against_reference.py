"""The learning stop policies against models that keep the whole history and recompute everything from it.

A model knows every step and every credit since the start. It has no running sum, no table and no clock of its own.
Rewards are random throughputs of decode-only steps, so the share of prefill (tested below) does not enter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.batching.interface import BatchState, Decision, StepOutcome
from plumage.batching.stop import QLearning, Ucb
from plumage.batching.stop.bins import Bin, discretise
from plumage.batching.stop.reward import DecodeReward
from plumage.batching.stop.ucb import Discounted, SlidingWindow

ADD, STOP = Decision.ADD, Decision.STOP
Credit = tuple[Bin, Decision, float]


@dataclass
class Steps:
    """Every step and every decision since the start. began: the step of this trial's first choice."""

    trials: bool
    steps: list[StepOutcome] = field(default_factory=list)
    held: list[tuple[Bin, Decision, int]] = field(default_factory=list)

    def chosen(self, state: Bin) -> Decision | None:
        return next((action for known, action, _ in self.held if self.trials and known == state), None)

    def hold(self, state: Bin, action: Decision) -> None:
        self.held.append((state, action, len(self.steps)))

    def judge(self, best: float) -> list[Credit]:
        """After a step: what is credited now; empty if nothing is."""
        if not self.held or (self.trials and not self._is_over(best)):
            return []
        last, began = len(self.steps), self.held[0][2]
        held, self.held = self.held, []
        if not self.trials:
            return [(state, action, _rate(self.steps[-1:])) for state, action, _ in held]
        return [(s, a, _rate(self.steps[at:])) for s, a, at in held if at < last and 2 * (at - began) <= last - began]

    def _is_over(self, best: float) -> bool:
        """Two lifetimes have passed, or a batch's tokens are missing compared with the best throughput."""
        decoded = sum(0.999**age * step.decode_tokens for age, step in enumerate(reversed(self.steps)))
        ended = sum(0.999**age * step.finished for age, step in enumerate(reversed(self.steps)))
        batch = max(0.999**age * step.decode_tokens for age, step in enumerate(reversed(self.steps)))
        life = min(decoded / ended, 8192) if ended else 8192
        trial = self.steps[self.held[0][2] :]
        behind = best * sum(step.seconds for step in trial) - sum(step.decode_tokens for step in trial)
        return len(trial) >= 2 * life or behind > batch * life


def _rate(steps: Sequence[StepOutcome]) -> float:
    return sum(step.decode_tokens for step in steps) / sum(step.seconds for step in steps)


@dataclass
class SlowUcb:
    """factor, period: of discounting; window: of the sliding window. Only one of the two forgets."""

    steps: Steps
    exploration: float
    factor: float = 1.0
    period: int = 10**9
    window: int = 10**9
    credits: list[Credit] = field(default_factory=list)

    def weighted(self) -> list[tuple[float, Credit]]:
        """Each remembered credit with its weight: every full period since then multiplied it by the factor."""
        made = len(self.credits)
        known = list(enumerate(self.credits))[-self.window :]
        return [(self.factor ** (made // self.period - at // self.period), credit) for at, credit in known]

    def decide(self, state: Bin) -> Decision:
        held = self.steps.chosen(state)
        if held is not None:
            return held
        bounds = [self.bound(state, action) for action in (ADD, STOP)]
        action = STOP if bounds[1] > bounds[0] * (1 + 1e-9) else ADD
        self.steps.hold(state, action)
        return action

    def bound(self, state: Bin, action: Decision) -> float:
        known = self.weighted()
        seen = [(w, r) for w, (s, a, r) in known if a is action and s == state]
        if not seen and self.steps.trials:
            seen = [(w, r) for w, (s, a, r) in known if a is action and s[1] == state[1]]
        if not seen:
            return math.inf
        count = sum(w for w, _ in seen)
        explored = math.log(max(sum(w for w, _ in known), 1.0)) / count
        mean, best = sum(w * r for w, r in seen) / count, self.best() or 1.0
        scatter = self.exploration
        if self.steps.trials and self.exploration:
            off = sum(w * ((r - mean) / best) ** 2 for w, r in seen)
            scatter = math.sqrt((((4 if action is ADD else 1) * self.exploration) ** 2 + off) / max(1.0, count))
        return mean / best + scatter * math.sqrt(explored)

    def best(self) -> float:
        cells: dict[tuple[Bin, Decision], list[tuple[float, float]]] = {}
        for weight, (state, action, reward) in self.weighted():
            cells.setdefault((state, action), []).append((weight, reward))
        return max((sum(w * r for w, r in own) / sum(w for w, _ in own) for own in cells.values()), default=0.0)

    def observe(self, outcome: StepOutcome) -> None:
        self.steps.steps.append(outcome)
        self.credits += self.steps.judge(self.best())


@dataclass
class SlowQ:
    """Every episode since the start is learned again, from an empty table, for each question. draws: random numbers."""

    steps: Steps
    draws: random.Random
    alpha: float
    gamma: float
    decay: float
    min_epsilon: float
    episodes: list[list[Credit]] = field(default_factory=list)
    explored: dict[int, Decision | None] = field(default_factory=dict)

    def values(self) -> dict[tuple[Bin, Decision], float]:
        values: dict[tuple[Bin, Decision], float] = {}
        visits: dict[tuple[Bin, Decision], int] = {}
        for episode in self.episodes:
            for at in range(len(episode) - 1, -1, -1):
                state, action, target = episode[at]
                if at + 1 < len(episode):
                    ahead = max(values.get((episode[at + 1][0], one), 0.0) for one in (ADD, STOP))
                    target = (target if not self.steps.trials else (1 - self.gamma) * target) + self.gamma * ahead
                cell = (state, action)
                visits[cell] = visits.get(cell, 0) + 1
                rate = max(self.alpha, 1 / visits[cell]) if self.steps.trials else self.alpha
                values[cell] = (1 - rate) * values.get(cell, 0.0) + rate * target
        return values

    def decide(self, state: Bin) -> Decision:
        held = self.steps.chosen(state)
        if held is not None:
            return held
        action = self.explore(state) or self.greedy(state)
        self.steps.hold(state, action)
        return action

    def explore(self, state: Bin) -> Decision | None:
        if not self.steps.trials:
            return self.draw()
        if state[1] not in self.explored:
            self.explored[state[1]] = self.draw()
        return self.explored[state[1]]

    def draw(self) -> Decision | None:
        epsilon = max(self.min_epsilon, self.decay ** len(self.episodes))
        if self.draws.random() >= epsilon:
            return None
        return ADD if self.draws.random() < 0.5 else STOP

    def greedy(self, state: Bin) -> Decision:
        values = self.values()

        def worth(action: Decision) -> float:
            alike = [v for (s, a), v in values.items() if a is action and s[1] == state[1]]
            guess = sum(alike) / len(alike) if alike and self.steps.trials else 0.0
            return values.get((state, action), guess)

        return STOP if worth(STOP) > worth(ADD) else ADD

    def observe(self, outcome: StepOutcome) -> None:
        self.steps.steps.append(outcome)
        episode = self.steps.judge(max(self.values().values(), default=0.0))
        ended = not self.steps.held and bool(episode)
        if ended:
            self.episodes.append(episode)
            self.explored.clear()


def questions(rng: random.Random) -> list[BatchState]:
    """The questions of one batch formation: a few states, some of them equal, some with nothing at stake."""
    states = []
    for _ in range(rng.randrange(4)):
        batch = rng.choice([1, 2, 4, 16])
        states.append(
            BatchState(batch, rng.choice([0, 8, 30]), 64, rng.choice([0, 5]), rng.choice([0, 6]), rng.choice([0, 90]))
        )
    return states


def step(rng: random.Random) -> StepOutcome:
    """Requests live for a few steps only, so that trials end within a test."""
    tokens = rng.randint(1, 30)
    return StepOutcome(rng.uniform(0.01, 0.03), tokens, finished=rng.randint(0, max(1, tokens // 2)))


def follow(policy: Ucb | QLearning, model: SlowUcb | SlowQ, seed: int, steps: int) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        for state in questions(rng):
            expected = model.decide(discretise(state)) if state.at_stake else ADD
            assert policy.decide(state) is expected
        outcome = step(rng)
        policy.observe(outcome)
        model.observe(outcome)


CREDITS = pytest.mark.parametrize("credit", ["Trial", "Step"])
EXPLORATION = st.just(0.0) | st.floats(0.01, 2)  # near 0, rounding decides between equal bounds


@CREDITS
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), window=st.integers(1, 40), exploration=EXPLORATION)
def test_sliding_window_ucb(credit: str, seed: int, window: int, exploration: float) -> None:
    policy = Ucb(exploration=exploration, memory=SlidingWindow(window), credit=credit)
    model = SlowUcb(Steps(credit == "Trial"), exploration, window=window)
    follow(policy, model, seed, 80)
    _same_table(policy, model)


@CREDITS
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), factor=st.floats(0.3, 1), period=st.integers(1, 20), exploration=EXPLORATION)
def test_discounted_ucb(credit: str, seed: int, factor: float, period: int, exploration: float) -> None:
    policy = Ucb(exploration=exploration, memory=Discounted(factor, period), credit=credit)
    model = SlowUcb(Steps(credit == "Trial"), exploration, factor, period)
    follow(policy, model, seed, 80)
    _same_table(policy, model)


def _same_table(policy: Ucb, model: SlowUcb) -> None:
    counts: dict[tuple[int, int, int, str], list[float]] = {}
    for weight, (state, action, reward) in model.weighted():
        cell = counts.setdefault((*state, action.value), [0.0, 0.0])
        cell[0], cell[1] = cell[0] + weight, cell[1] + weight * reward
    rows = {row[:4]: row[4:] for row in policy.table.rows()}
    assert set(rows) == set(counts)
    for cell, (count, reward) in counts.items():
        assert rows[cell] == pytest.approx((count, reward), rel=1e-6, abs=1e-6)


@CREDITS
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), alpha=st.floats(0.05, 1), gamma=st.floats(0, 1), decay=st.floats(0.5, 1))
def test_q_learning(credit: str, seed: int, alpha: float, gamma: float, decay: float) -> None:
    policy = QLearning(random.Random(seed), alpha=alpha, gamma=gamma, decay=decay, min_epsilon=0.1, credit=credit)
    model = SlowQ(Steps(credit == "Trial"), random.Random(seed), alpha, gamma, decay, 0.1)
    follow(policy, model, seed + 1, 60)
    for (state, action), value in model.values().items():
        assert policy.value(state, action) == pytest.approx(value, rel=1e-6)


def test_histories_reach_the_tested_rules() -> None:
    """Trials end often enough to credit many states with both actions."""
    model = SlowUcb(Steps(True), 0.5)
    follow(Ucb(exploration=0.5, memory=Discounted(1.0)), model, 3, 300)
    assert len(model.credits) > 50
    assert {action for _, action, _ in model.credits} == {ADD, STOP}
    assert len({state for state, _, _ in model.credits}) > 4


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), blend=st.floats(0.01, 0.5))
def test_cost_of_prefill_is_the_slope_of_a_weighted_regression_over_all_steps(seed: int, blend: float) -> None:
    rng, reward = random.Random(seed), DecodeReward(blend=blend)
    steps: list[StepOutcome] = []
    for _ in range(60):
        steps.append(StepOutcome(rng.uniform(0.01, 0.4), 8, rng.choice([0, 0, 100, 900])))
        given = reward.reward(steps[-1])
        weights = [1.0]
        for number in range(2, len(steps) + 1):
            share = max(blend, 1 / number)
            weights = [(1 - share) * weight for weight in weights] + [share]
        mean_x = sum(w * s.prefill_tokens for w, s in zip(weights, steps, strict=True))
        mean_y = sum(w * s.seconds for w, s in zip(weights, steps, strict=True))
        varies = sum(w * (s.prefill_tokens - mean_x) ** 2 for w, s in zip(weights, steps, strict=True))
        both = sum(w * (s.prefill_tokens - mean_x) * (s.seconds - mean_y) for w, s in zip(weights, steps, strict=True))
        slope = max(both / varies, 0.0) if varies > 1e-9 else 0.0
        assert reward.prefill_cost == pytest.approx(slope, rel=1e-6, abs=1e-12)
        if given is not None:
            last = steps[-1]
            assert given == pytest.approx(8 / max(last.seconds - slope * last.prefill_tokens, 0.02 * last.seconds))
