"""Stop policies in a simulated engine: what they must not lose, and that they learn the modelled device.

Loads and engine are those of the `batching` benchmark, smaller. Throughputs come from a model: they show that a policy
learns, not its gain on a real device.
"""

from __future__ import annotations

from functools import cache

import pytest

from plumage_bench.benches.batching.engine import Contender, Load, throughput


def load(device: str, count: int, groups: int, *, rate: float, batch: int) -> Load:
    """5,000 shared tokens and 96 private ones. One group per request means that nothing is shared."""
    return Load("test", device, count, groups, rate=rate, output=100, batch=batch)


@cache  # a run is the same each time, and several policies are compared with one of them
def tokens_a_second(policy: str, given: Load, seed: int, *, ordered: bool = False) -> float:
    name = policy.removesuffix("Paper")
    form = {f"{name[0].lower()}{name[1:]}.form": "Paper"} if name != policy else {}
    return throughput(given, Contender(policy, name, ordered=ordered, fields=form), seed)


@pytest.mark.parametrize("policy", ["Bandit", "QLearning", "Heuristic", "Predictive"])
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_stop_policy_without_sharing_is_fcfs(policy: str, device: str) -> None:
    alone = load(device, 300, 300, rate=20.0, batch=64)
    assert tokens_a_second(policy, alone, 1) == pytest.approx(tokens_a_second("Fcfs", alone, 1))


@pytest.mark.parametrize("policy", ["BanditPaper", "QLearningPaper"])
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_printed_form_without_sharing_serves_as_much_as_fcfs(policy: str, device: str) -> None:
    """FEATHER §5.3.7. It stops to learn what that costs."""
    alone = load(device, 300, 300, rate=20.0, batch=64)
    assert tokens_a_second(policy, alone, 1) > 0.95 * tokens_a_second("Fcfs", alone, 1)


@pytest.mark.parametrize("policy", ["Bandit", "QLearning", "Heuristic", "Predictive"])
@pytest.mark.parametrize("seed", [1, 2])
def test_learners_find_homogeneous_batches_on_a_device_with_a_cliff(policy: str, seed: int) -> None:
    shared = load("gpu", 3_000, 5, rate=100.0, batch=300)
    reached = tokens_a_second(policy, shared, seed)
    assert reached > 1.2 * tokens_a_second("Fcfs", shared, seed)
    assert reached > 1.05 * tokens_a_second("ChtOrder", shared, seed)


@pytest.mark.parametrize(("device", "gain"), [("cpu", 1.05), ("gpu", 1.0)])
def test_sorted_batch_helps_where_adjacent_reads_are_cheaper(device: str, gain: float) -> None:
    """On real CPUs 5 to 24 % (measured, see the device's source)."""
    shared = load(device, 600, 20, rate=20.0, batch=64)
    plain, ordered = (tokens_a_second("ChtOrder", shared, 3, ordered=sort) for sort in (False, True))
    assert ordered > gain * plain if gain > 1 else ordered == plain


def test_prediction_costs_nothing_where_pairs_share_little() -> None:
    pairs = Load("test", "gpu", 1_000, 500, prefix=500, rate=100.0, output=100, batch=64)
    assert tokens_a_second("Predictive", pairs, 1) > 0.98 * tokens_a_second("ChtOrder", pairs, 1)


@pytest.mark.parametrize("policy", ["Bandit", "QLearning", "Predictive"])
@pytest.mark.parametrize("groups", [5, 50])
def test_learners_lose_little_on_a_device_with_a_slope(policy: str, groups: int) -> None:
    shared = load("cpu", 1_000, groups, rate=20.0, batch=64)
    assert tokens_a_second(policy, shared, 3) > 0.97 * tokens_a_second("ChtOrder", shared, 3)
