"""The printed bandit and Q-learning against FEATHER's formulas (§4.3.3, §4.3.4, Alg. 7), written out from its text.

The references keep the whole history, and compute every value from it again. They share no code with the policies but
the enumeration of decisions. A reward is the throughput of the next step that only decodes.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.batching.interface import BatchState, Decision, StepOutcome
from plumage.batching.stop import QLearningPaper, UcbPaper
from plumage.batching.stop.paper import PaperLearner, printed_state

ADD, STOP = Decision.ADD, Decision.STOP
Bins = tuple[int, int, int]


def bins(state: BatchState) -> Bins:
    """§4.3.1: exponential bins of b and w, coarse thresholds of Δ."""

    def exponential(count: int) -> int:
        return 0 if count == 0 else math.floor(math.log2(count)) + 1

    coarse = 0 if state.loss == 0 else 1 if state.loss <= 5 else 2 if state.loss <= 7 else 3
    return exponential(state.batch), coarse, exponential(state.peers)


@dataclass
class PrintedUcb:
    """rewarded: all decisions whose batch has run, each with its reward."""

    c: float
    rewarded: list[tuple[Bins, Decision, float]] = field(default_factory=list)
    batch: list[tuple[Bins, Decision]] = field(default_factory=list)

    def decide(self, state: BatchState) -> Decision | None:
        """None if rounding would decide."""
        add, stop = self.bound(bins(state), ADD), self.bound(bins(state), STOP)
        tied = add != stop and math.isclose(add, stop, rel_tol=1e-8)
        return None if tied else STOP if stop > add else ADD

    def took(self, state: BatchState, action: Decision) -> None:
        self.batch.append((bins(state), action))

    def bound(self, state: Bins, action: Decision) -> float:
        rewards = [r for s, a, r in self.rewarded if (s, a) == (state, action)]
        if not rewards:
            return math.inf
        means = defaultdict(list)
        for s, a, r in self.rewarded:
            means[s, a].append(r)
        best = max(math.fsum(own) / len(own) for own in means.values())
        explored = math.sqrt(math.log(len(self.rewarded)) / len(rewards))
        return math.fsum(rewards) / len(rewards) + self.c * best * explored

    def ran(self, throughput: float | None) -> None:
        if throughput is not None:
            self.rewarded += [(state, action, throughput) for state, action in self.batch]
            self.batch = []


@dataclass
class PrintedQ:
    """episodes: those with a reward. All are learned again for each question."""

    draws: random.Random
    alpha: float
    gamma: float
    decay: float
    least: float
    episodes: list[tuple[list[tuple[Bins, Decision]], float]] = field(default_factory=list)
    waiting: list[list[tuple[Bins, Decision]]] = field(default_factory=list)
    batch: list[tuple[Bins, Decision]] = field(default_factory=list)

    def q(self) -> dict[tuple[Bins, Decision], float]:
        q: dict[tuple[Bins, Decision], float] = defaultdict(float)
        for episode, r in self.episodes:
            states: list[Bins | None] = [state for state, _ in episode[1:]] + [None]
            for (s, a), following in zip(episode, states, strict=True):
                best = max(q[following, ADD], q[following, STOP]) if following else 0.0
                q[s, a] = q[s, a] + self.alpha * (r + self.gamma * best - q[s, a])
        return q

    def epsilon(self) -> float:
        return max(self.least, self.decay ** len(self.episodes))

    def decide(self, state: BatchState) -> Decision | None:
        if self.draws.random() < self.epsilon():
            return ADD if self.draws.random() < 0.5 else STOP
        q, s = self.q(), bins(state)
        return STOP if q[s, STOP] > q[s, ADD] else ADD

    def took(self, state: BatchState, action: Decision) -> None:
        self.batch.append((bins(state), action))
        if action is STOP:
            self.end()

    def end(self) -> None:
        if self.batch:
            self.waiting.append(self.batch)
            self.batch = []

    def ran(self, throughput: float | None) -> None:
        self.end()
        if throughput is not None:
            self.episodes += [(episode, throughput) for episode in self.waiting]
            self.waiting = []


def question(rng: random.Random) -> BatchState:
    """One of few states, so that they come again. Some have nothing at stake for our forms."""
    loss, depth = rng.choice([(0, 64), (3, 64), (6, 64), (40, 64), (0, 0)])
    return BatchState(rng.choice([1, 2, 3, 40]), loss, depth, rng.choice([0, 1, 9]), rng.choice([0, 6]), 0)


def follow(policy: PaperLearner, model: PrintedUcb | PrintedQ, seed: int, steps: int) -> None:
    """Batches of up to four questions; a policy goes on to ask after a STOP too, as engines do when a request comes."""
    rng = random.Random(seed)
    for _ in range(steps):
        for _ in range(rng.randrange(5)):
            state = question(rng)
            expected, action = model.decide(state), policy.decide(state)
            assert expected in (action, None)
            model.took(state, action)
        decoded = rng.choice([0, *range(1, 30)])
        read = rng.choice([0, 0, 0, 500])
        outcome = StepOutcome(rng.uniform(0.01, 0.03), decoded, read, finished=rng.randint(0, decoded))
        policy.observe(outcome)
        model.ran(decoded / outcome.seconds if decoded and not read else None)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 500), st.integers(0, 10**5))
def test_states_are_the_printed_triple_in_bins(batch: int, loss: int, peers: int) -> None:
    state = BatchState(batch, loss, 500, peers, siblings=7, sibling_gain=80)
    assert printed_state(state) == bins(state)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), exploration=st.floats(0, 3))
def test_bandit_follows_its_formula(seed: int, exploration: float) -> None:
    policy, model = UcbPaper(exploration=exploration), PrintedUcb(exploration)
    follow(policy, model, seed, 60)
    assert policy.decisions == len(model.rewarded)
    counts: dict[tuple[Bins, Decision], list[float]] = defaultdict(list)
    for state, action, reward in model.rewarded:
        counts[state, action].append(reward)
    assert policy.cells == {cell: (len(own), pytest.approx(math.fsum(own))) for cell, own in counts.items()}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    alpha=st.floats(0.05, 1),
    gamma=st.floats(0, 1),
    decay=st.floats(0.5, 1),
    least=st.floats(0, 0.3),
)
def test_q_learning_follows_its_formula(seed: int, alpha: float, gamma: float, decay: float, least: float) -> None:
    policy = QLearningPaper(random.Random(seed), alpha=alpha, gamma=gamma, decay=decay, min_epsilon=least)
    model = PrintedQ(random.Random(seed), alpha, gamma, decay, least)
    follow(policy, model, seed + 1, 50)
    assert policy.epsilon == pytest.approx(model.epsilon())
    assert policy.values == pytest.approx({cell: value for cell, value in model.q().items() if cell in policy.values})


def test_histories_reach_the_tested_rules() -> None:
    """Both actions, several states, episodes of several decisions and unrewarded steps occur."""
    bandit = PrintedUcb(1.4)
    follow(UcbPaper(exploration=1.4), bandit, 3, 200)
    assert {action for _, action, _ in bandit.rewarded} == {ADD, STOP}
    assert len({state for state, _, _ in bandit.rewarded}) > 20
    agent = PrintedQ(random.Random(4), 0.1, 0.9, 0.99, 0.05)
    follow(QLearningPaper(random.Random(4), decay=0.99), agent, 3, 200)
    assert max(len(episode) for episode, _ in agent.episodes) > 2
    assert min(len(episode) for episode, _ in agent.episodes) == 1


def printed() -> list[PaperLearner]:
    return [UcbPaper(), UcbPaper(exploration=0.05), QLearningPaper(random.Random(5), decay=0.98)]


IDS = ["bandit", "bandit, small c", "q"]


@pytest.mark.parametrize("policy", printed(), ids=IDS)
def test_printed_form_is_asked_where_ours_always_adds(policy: PaperLearner) -> None:
    """A batch of one, and a loss of nothing: `at_stake` is false, and the printed forms try a STOP all the same."""
    taken = set()
    for _ in range(200):
        state = BatchState(batch=1, loss=0, depth=0, peers=0)
        assert not state.at_stake
        taken.add(policy.decide(state))
        policy.observe(StepOutcome(0.01, 1))
    assert taken == {ADD, STOP}


@pytest.mark.parametrize("policy", printed(), ids=IDS)
def test_printed_form_stops_where_the_next_step_is_faster(policy: PaperLearner) -> None:
    """γ is 0.9 and each batch is one decision, so Q-learning compares the rewards of one step too."""
    lossy, stops = BatchState(batch=16, loss=60, depth=64, peers=3), []
    for _ in range(600):
        action = policy.decide(lossy)
        stops.append(action is STOP)
        policy.observe(StepOutcome(0.02 if action is ADD else 0.01, 16))
    assert sum(stops[300:]) > 0.6 * 300


def test_add_is_worth_more_than_its_reward_within_an_episode() -> None:
    """As printed, STOP ends an episode and ADD does not: at equal rewards ADD is worth up to r/(1 − γ)."""
    policy = QLearningPaper(random.Random(1), gamma=0.9, epsilon=1.0, min_epsilon=1.0, decay=1.0)
    state = BatchState(batch=8, loss=0, depth=64, peers=9)
    for _ in range(3000):
        while policy.decide(state) is ADD:
            pass
        policy.observe(StepOutcome(0.01, 10))
    assert policy.value(printed_state(state), STOP) == pytest.approx(1000)
    assert 5000 < policy.value(printed_state(state), ADD) < 10_000


def test_epsilon_decays_from_one_to_its_least_once_an_episode() -> None:
    policy = QLearningPaper(random.Random(2), min_epsilon=0.25, decay=0.5)
    seen = []
    for _ in range(4):
        seen.append(policy.epsilon)
        policy.decide(question(random.Random(1)))
        policy.observe(StepOutcome(0.01, 0))
        assert policy.epsilon == seen[-1], "there is no reward yet"
        policy.observe(StepOutcome(0.01, 5))
        policy.observe(StepOutcome(0.01, 5))
    assert seen == [1.0, 0.5, 0.25, 0.25]


def test_choices_of_the_bandit_do_not_depend_on_the_speed_of_the_device() -> None:
    def history(speed: float) -> list[Decision]:
        policy, rng, taken = UcbPaper(), random.Random(9), []
        for _ in range(300):
            taken.append(policy.decide(question(rng)))
            policy.observe(StepOutcome((0.02 if taken[-1] is ADD else 0.01) / speed, 16))
        return taken

    assert history(1.0) == history(128.0)  # a power of two, so that rounding is the same


@pytest.mark.parametrize("policy", printed(), ids=IDS)
def test_decisions_are_judged_by_a_decode_iteration(policy: PaperLearner) -> None:
    """A.7: steps that read prompts, or decode nothing, are no measure of decode throughput."""
    state, learned = BatchState(batch=16, loss=0, depth=64, peers=3), []
    learn = policy._learn
    policy._learn = lambda taken, reward: (learned.append((len(taken), reward)), learn(taken, reward))  # type: ignore
    policy.decide(state)
    policy.observe(StepOutcome(0.5, 16, prefill_tokens=4096))
    policy.decide(state)
    policy.observe(StepOutcome(0.5, 0, prefill_tokens=4096))
    assert learned == []
    policy.observe(StepOutcome(0.01, 17))
    policy.observe(StepOutcome(0.02, 17))
    assert learned == [(2, pytest.approx(1700))]


@st.composite
def calls(draw: st.DrawFn) -> list[Any]:
    state = st.builds(
        BatchState,
        batch=st.integers(0, 2000),
        loss=st.integers(0, 300),
        depth=st.integers(0, 300),
        peers=st.integers(0, 2000),
    )
    outcome = st.builds(
        StepOutcome,
        seconds=st.sampled_from([0.0, 1e-320, 0.01, 3.0, math.inf]),
        decode_tokens=st.integers(0, 600),
        prefill_tokens=st.sampled_from([0, 0, 700]),
        finished=st.integers(0, 5),
        steps=st.integers(1, 9),
    )
    return draw(st.lists(state | outcome, max_size=80))


@settings(max_examples=100, deadline=None)
@given(made=calls(), seed=st.integers(0, 99), kind=st.sampled_from(["bandit", "q"]))
def test_any_calls_keep_the_tables_finite_and_bounded(made: list[Any], seed: int, kind: str) -> None:
    policy = UcbPaper() if kind == "bandit" else QLearningPaper(random.Random(seed), decay=0.9, gamma=0.9)
    asked, waiting, highest = 0, 0, 0.0
    for one in made:
        if isinstance(one, BatchState):
            assert policy.decide(one) in (ADD, STOP)
            asked, waiting = asked + 1, waiting + 1
            continue
        policy.observe(one)
        waiting = len(policy._taken)
        assert all(decision.ends for decision in list(policy._taken)[-1:])
        if one.seconds:
            highest = max(highest, one.decode_tokens / one.seconds)
        if isinstance(policy, UcbPaper):
            assert policy.decisions == asked - waiting == sum(times for times, _ in policy.cells.values())
            assert all(times > 0 and 0 <= total / times <= highest for times, total in policy.cells.values())
        else:
            assert 0.05 <= policy.epsilon <= 1.0
            assert all(0 <= value <= highest / (1 - 0.9) * 1.001 for value in policy.values.values())
    if isinstance(policy, UcbPaper):
        assert all(math.isfinite(total) for _, total in policy.cells.values())
    else:
        assert all(math.isfinite(value) for value in policy.values.values())


@pytest.mark.parametrize("policy", printed(), ids=IDS)
def test_decisions_without_a_reward_are_bounded(policy: PaperLearner) -> None:
    rng = random.Random(1)
    for _ in range(10_000):
        policy.decide(question(rng))
        policy.observe(StepOutcome(0.01, 0))
    assert len(policy._taken) == 4096
