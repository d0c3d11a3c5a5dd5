"""What each baseline's queue adds to the contract of every queue (tests/unit/batching/test_queue_contract.py)."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queues import Never, candidate, queue, vector

from plumage.batching import BatchState, Decision, StepOutcome
from plumage.batching.feather import Feather
from plumage.batching.stop import QLearning
from plumage.errors import ConfigurationError
from plumage_bench.baselines.batching.prefixes import PrefixRecord
from plumage_bench.baselines.batching.radix import Radix


def test_lpm_takes_the_longest_cached_prefix_and_falls_back_to_fcfs_in_a_long_queue() -> None:
    def first_after_seeing(policy_limit: int | None) -> Hashable:
        waiting = queue("Lpm", fcfs_above=policy_limit)
        waiting.insert(candidate("warm", "aaaa"))
        waiting.add("warm")
        for number in range(4):
            waiting.insert(candidate(f"cold{number}", f"{number}bbb"))
        waiting.insert(candidate("sibling", "aaab"))
        return waiting.select(now=0.0)

    assert first_after_seeing(128) == "sibling"
    assert first_after_seeing(4) == "cold0"
    assert first_after_seeing(None) == "sibling"


def test_dfs_weight_serves_the_heavier_branch_first() -> None:
    waiting = queue("DfsWeight")
    for name, text in (("light", "bb"), ("heavy1", "aax"), ("heavy2", "aay"), ("heavy3", "ab")):
        waiting.insert(candidate(name, text))
    served = []
    while len(waiting):
        waiting.add(chosen := waiting.select(now=0.0))
        served.append(chosen)
    assert set(served[:2]) == {"heavy1", "heavy2"}
    assert served[2:] == ["heavy3", "light"]


def test_oracle_keeps_batches_homogeneous_and_takes_the_fullest_group_next() -> None:
    waiting = queue("Oracle")
    for number, group in enumerate("abbcbc"):
        waiting.insert(candidate(number, group * 3, group=group))
    waiting.add(first := waiting.select(now=0.0))
    assert first == 1
    waiting.add(waiting.select(now=0.0))
    waiting.add(waiting.select(now=0.0))
    assert waiting.select(now=0.0) is None
    for number in (1, 2, 4):
        waiting.finish(number)
    assert waiting.select(now=0.0) == 3


def test_dynamic_batching_follows_the_step_time_and_ignores_prefill() -> None:
    waiting = queue("Dynamic", target=0.1, largest=64)
    for number in range(100):
        waiting.insert(candidate(number))
    for _ in range(8):
        waiting.add(waiting.select(now=0.0))
    assert waiting.select(now=0.0) is None
    waiting.observe(StepOutcome(9.0, 8, prefill_tokens=500))
    assert waiting.select(now=0.0) is None
    waiting.observe(StepOutcome(0.01, 8))
    assert waiting.select(now=0.0) is not None
    waiting.observe(StepOutcome(0.5, 8))
    assert waiting.select(now=0.0) is None


def test_radix_gives_the_tip_loss_order_of_the_tree() -> None:
    waiting = queue("Radix")
    for name in ("active", "twin"):
        waiting.insert(candidate(name, "aaaaaaaaaaaaaa"))
        waiting.add(name)
    waiting.insert(candidate("stranger", "b", arrival=1.0))
    waiting.insert(candidate("sibling", "aaaaaaaaaaaaab", arrival=2.0))
    assert waiting.select(now=2.0) == "sibling"
    waiting.remove("sibling")
    assert waiting.select(now=2.0) is None


@settings(max_examples=150, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["insert", "insert", "add", "finish", "remove"]), st.text("ab", max_size=5))
    )
)
def test_radix_asks_about_as_little_loss_as_the_tree(moves: list[tuple[str, str]]) -> None:
    asked: dict[str, list[BatchState]] = {"tree": [], "radix": []}

    class Noting(Never):
        def __init__(self, name: str) -> None:
            self.name = name

        def decide(self, state: BatchState) -> Decision:
            asked[self.name].append(state)
            return Decision.ADD

    tree, radix = Feather(Noting("tree")), Radix(Noting("radix"))
    active: list[Hashable] = []
    for number, (move, text) in enumerate(moves):
        if move == "insert":
            for one in (tree, radix):
                one.insert(candidate(number, text or "c", arrival=number))
        elif move == "finish" and active:
            for one in (tree, radix):
                one.finish(active[0])
            del active[0]
        elif move in ("add", "remove") and (chosen := radix.select(0.0)) is not None:
            assert tree.select(0.0) is not None
            for one in (tree, radix):
                one.add(chosen) if move == "add" else one.remove(chosen)
            active += [chosen] if move == "add" else []
    assert [(s.batch, s.loss, s.depth, s.peers) for s in asked["tree"]] == [
        (s.batch, s.loss, s.depth, s.peers) for s in asked["radix"]
    ]


def test_radix_takes_any_stop_policy() -> None:
    assert isinstance(queue("Radix", stop="QLearning", stop_options={"alpha": 0.3}).policy, QLearning)
    with pytest.raises(ConfigurationError, match="no stop policy named 'Fcfs'; there are: Bandit"):
        queue("Radix", stop="Fcfs")


def test_prefix_record_is_bounded_and_closed_under_ancestors() -> None:
    record = PrefixRecord(capacity=6)
    record.note(vector("aaaa"))
    record.note(vector("bbbb"))
    assert record.depth(vector("aaaa")) == 2
    assert record.depth(vector("bbbbc")) == 4
    assert record.depth(()) == 0


@pytest.mark.parametrize(("option", "value"), [("target", 0.0), ("smallest", 0), ("cut", 1.2)])
def test_dynamic_setting_out_of_bounds_is_refused_by_its_name(option: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be "):
        queue("Dynamic", **{option: value})
