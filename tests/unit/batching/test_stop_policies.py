"""Stop policies: what they learn, how they forget, and what they share."""

from __future__ import annotations

import random

import pytest

from plumage.batching.interface import BatchState, Decision, StepOutcome
from plumage.batching.stop import ActionTable, Heuristic, QLearning, Ucb
from plumage.batching.stop.bins import discretise
from plumage.batching.stop.reward import DecodeReward
from plumage.batching.stop.trial import Trial
from plumage.batching.stop.ucb import Discounted, SlidingWindow
from plumage.errors import ConfigurationError

ADD, STOP = Decision.ADD, Decision.STOP
LOSSY = BatchState(batch=16, loss=60, depth=64, peers=3)
FREE = BatchState(batch=16, loss=0, depth=64, peers=3)


def cliff_device(state: BatchState, action: Decision) -> StepOutcome:
    """A device on which a stranger halves throughput and a sibling adds to it."""
    decode = 16 + (action is ADD)
    seconds = 0.02 if action is ADD and state.loss else 0.01
    return StepOutcome(seconds, decode, finished=decode)


def slope_device(state: BatchState, action: Decision) -> StepOutcome:
    """A device that ignores prefixes: a larger batch is always faster."""
    decode = 16 + 4 * (action is ADD)
    return StepOutcome(0.01, decode, finished=decode)


def share_of_stops(policy: Ucb | QLearning, device, state: BatchState, rounds: int) -> float:
    stops = 0
    for _ in range(rounds):
        action = policy.decide(state)
        stops += action is STOP
        policy.observe(device(state, action))
    return stops / rounds


def learners() -> list[Ucb | QLearning]:
    return [
        Ucb(),
        Ucb(memory=SlidingWindow(512)),
        QLearning(random.Random(5), decay=0.98),
    ]


@pytest.mark.parametrize("policy", learners(), ids=["discounted", "window", "q"])
def test_learners_stop_at_the_cliff_and_only_there(policy: Ucb | QLearning) -> None:
    share_of_stops(policy, cliff_device, LOSSY, 400)
    assert share_of_stops(policy, cliff_device, LOSSY, 200) > 0.8
    assert share_of_stops(policy, cliff_device, FREE, 200) == 0  # nothing is at stake


@pytest.mark.parametrize("policy", learners(), ids=["discounted", "window", "q"])
def test_learners_add_where_the_device_ignores_prefixes(policy: Ucb | QLearning) -> None:
    share_of_stops(policy, slope_device, LOSSY, 600)
    assert share_of_stops(policy, slope_device, LOSSY, 200) < 0.2


@pytest.mark.parametrize("memory", [Discounted(0.5, 64), SlidingWindow(256)], ids=["discounted", "window"])
def test_bandit_forgets_when_the_workload_drifts(memory) -> None:
    policy = Ucb(memory=memory)
    share_of_stops(policy, cliff_device, LOSSY, 2_000)
    share_of_stops(policy, slope_device, LOSSY, 1_000)
    assert share_of_stops(policy, slope_device, LOSSY, 200) < 0.3


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_one_slow_moment_does_not_make_it_learn_stop(slow: int) -> None:
    """ADD is worth a fourth more, but one of its first trials ran while the machine was busy."""
    policy, added, stops = Ucb(), 0, []
    for _ in range(120):
        action = policy.decide(LOSSY)
        outcome = slope_device(LOSSY, action)
        if not policy.table.total or (action is ADD and added == slow):
            outcome = StepOutcome(outcome.seconds * 1.6, outcome.decode_tokens, finished=outcome.finished)
        added += action is ADD
        stops.append(action is STOP)
        policy.observe(outcome)
    assert sum(stops[60:]) < 15


def test_ucb_tries_unseen_actions_first_and_adds_on_a_tie() -> None:
    policy, taken = Ucb(), []
    for _ in range(3):
        taken.append(policy.decide(LOSSY))
        for _ in range(2):
            policy.observe(StepOutcome(0.01, 16, finished=16))
    assert taken == [ADD, STOP, ADD]


def test_step_without_throughput_continues_the_trial() -> None:
    policy = Ucb()
    policy.decide(LOSSY)
    policy.observe(StepOutcome(0.5, 0, prefill_tokens=4096))
    assert policy.table.total == 0
    for _ in range(2):
        policy.observe(StepOutcome(0.01, 16, finished=16))
    assert policy.table.count(discretise(LOSSY), ADD) == 1


@pytest.mark.parametrize("policy", learners(), ids=["discounted", "window", "q"])
def test_learner_does_not_stop_where_nothing_is_at_stake(policy: Ucb | QLearning) -> None:
    for state in (
        FREE,
        BatchState(1, 64, 64, 0),
        BatchState(40, 0, 0, 0),
        BatchState(1, 60, 64, 9, siblings=9, sibling_gain=1),
    ):
        assert not state.at_stake
        assert share_of_stops(policy, cliff_device, state, 50) == 0


def test_mixed_batch_is_another_state_than_a_batch_of_siblings() -> None:
    mixed = BatchState(batch=16, loss=0, depth=0, peers=0, siblings=30, sibling_gain=64)
    assert mixed.at_stake
    assert discretise(mixed) != discretise(BatchState(batch=16, loss=0, depth=64, peers=0))
    assert discretise(BatchState(16, 0, 60, 0, siblings=2, sibling_gain=4)) == discretise(BatchState(16, 0, 60, 0))


def test_choice_is_held_for_a_turnover_and_credited_with_all_later_steps() -> None:
    trial = Trial()
    for _ in range(400):
        trial.step(10, 0.1, 1, best=0.0)  # each request decodes for ten steps
    trial.hold((4, 5, 6), STOP)
    steps = [10 if number < 10 else 40 for number in range(30)]
    lasted = next(number for number, tokens in enumerate(steps, 1) if trial.step(tokens, 0.1, tokens // 10, best=0.0))
    assert 20 <= lasted <= 21  # two lifetimes
    assert trial.choice((4, 5, 6)) is STOP
    assert list(trial.end()) == [((4, 5, 6), STOP, pytest.approx(sum(steps[:lasted]) / (0.1 * lasted)))]
    assert trial.choice((4, 5, 6)) is None


def test_trial_a_whole_batch_behind_ends_early() -> None:
    trial = Trial()
    for _ in range(400):
        trial.step(10, 0.1, 1, best=0.0)
    trial.hold((4, 5, 6), STOP)
    steps = next(number for number in range(1, 30) if trial.step(1, 0.1, 0, best=100.0))
    assert 11 <= steps <= 13  # nine tokens a step behind; a batch of ten has a hundred tokens to decode


def test_choice_made_late_in_a_trial_is_not_judged_by_it() -> None:
    trial = Trial()
    trial.hold((4, 5, 6), ADD)
    trial.step(10, 0.1, 1, best=0.0)
    for _ in range(15):
        trial.step(10, 0.1, 1, best=0.0)
    trial.hold((1, 4, 0), STOP)
    trial.step(10, 0.1, 1, best=0.0)
    assert [state for state, _, _ in trial.end()] == [(4, 5, 6)]


@pytest.mark.parametrize("together", [1, 8])
def test_trial_of_merged_steps_lasts_as_long_and_is_worth_as_much(together: int) -> None:
    trial = Trial()
    for _ in range(400):
        trial.step(10, 0.1, 1, best=0.0)
    trial.hold((4, 5, 6), STOP)
    merged = next(n for n in range(1, 40) if trial.step(10 * together, 0.1 * together, together, 0.0, steps=together))
    assert 20 < merged * together <= 24  # two lifetimes, to the end of the merged steps
    assert list(trial.end()) == [((4, 5, 6), STOP, pytest.approx(100.0))]


def test_batches_that_end_as_one_are_learned_from() -> None:
    """The step after their end only reads prompts and has no throughput, but its ended requests count."""
    policy = Ucb()
    for _ in range(8):
        policy.observe(StepOutcome(0.3, 0, prefill_tokens=320, finished=16))
        for _ in range(64):
            policy.decide(LOSSY)
            policy.observe(StepOutcome(0.05, 16))
    assert {row[3] for row in policy.rows()} == {"Add", "Stop"}


def test_prefill_in_a_step_does_not_penalise_add() -> None:
    clock, rng = DecodeReward(), random.Random(1)
    steps = [StepOutcome(0.010 + 0.0001 * tokens, 16, tokens) for tokens in rng.choices([0, 0, 0, 500, 2000], k=60)]
    rewards = [clock.reward(step) for step in steps]
    assert clock.prefill_cost == pytest.approx(0.0001, rel=0.01)
    assert rewards[20:] == pytest.approx([1600.0] * 40, rel=0.05)


def test_prefill_of_unknown_cost_gives_no_throughput() -> None:
    assert DecodeReward().reward(StepOutcome(0.5, 4, prefill_tokens=1000)) is None


def test_exploration_is_the_same_on_a_device_a_hundred_times_as_fast() -> None:
    def history(speed: float) -> list[Decision]:
        policy, taken = Ucb(), []
        for _ in range(200):
            taken.append(action := policy.decide(LOSSY))
            outcome = cliff_device(LOSSY, action)
            policy.observe(StepOutcome(outcome.seconds / speed, outcome.decode_tokens, finished=outcome.finished))
        return taken

    assert history(1.0) == history(100.0)


def test_heuristic_raises_its_floor_and_relaxes_for_many_peers() -> None:
    policy = Heuristic()
    lossy = BatchState(batch=5, loss=6, depth=64, peers=2)
    assert policy.decide(lossy) is STOP
    for _ in range(20):
        assert policy.decide(FREE) is ADD
    assert policy.decide(lossy) is ADD  # the floor is 10 by now
    assert policy.decide(BatchState(batch=12, loss=6, depth=64, peers=2)) is STOP
    assert policy.decide(BatchState(batch=12, loss=6, depth=64, peers=10)) is ADD
    assert policy.decide(BatchState(batch=12, loss=8, depth=64, peers=10)) is STOP


def test_bins_are_coarse_and_bounded() -> None:
    assert discretise(BatchState(0, 0, 0, 0)) == (0, 0, 0)
    assert discretise(BatchState(10**6, 10**6, 1, 10**6)) == (10, 4, 10)
    assert discretise(BatchState(8, 1, 80, 4)) == discretise(BatchState(9, 2, 80, 5))
    assert discretise(BatchState(8, 2, 4, 4)) != discretise(BatchState(8, 2, 80, 4))


def test_merged_tables_equal_one_with_all_experience() -> None:
    whole, parts = ActionTable(), [ActionTable(), ActionTable()]
    rng = random.Random(2)
    for number in range(200):
        cell = ((rng.randrange(4), rng.randrange(3), 0), rng.choice([ADD, STOP]), rng.random())
        whole.credit(*cell)
        parts[number % 2].credit(*cell)
    merged = ActionTable.from_rows(list(parts[0].rows()))
    merged.merge(ActionTable.from_rows(list(parts[1].rows())))
    for ours, theirs in zip(merged.rows(), whole.rows(), strict=True):
        assert ours[:4] == theirs[:4]
        assert ours[4:] == pytest.approx(theirs[4:])
    assert merged.total == whole.total


def test_new_agent_starts_with_the_experience_of_another() -> None:
    trained = QLearning(random.Random(5), decay=0.98)
    share_of_stops(trained, cliff_device, LOSSY, 600)
    fresh = QLearning(random.Random(6), epsilon=0.0, min_epsilon=0.0)
    fresh.merge(trained.rows())
    assert fresh.decide(LOSSY) is STOP


@pytest.mark.parametrize(
    "row", [(1, 2), (1, 2, 3, "Maybe", 1.0, 1.0), (1, 2, 3, "Add", float("nan"), 1.0), (1, 2, 3, "Add", -1.0, 1.0)]
)
def test_broken_table_is_refused_with_its_row(row: tuple) -> None:
    with pytest.raises(ConfigurationError, match="learned table"):
        ActionTable.from_rows([row])
