"""Routing policies by name, and those that use only load or the longest prefix."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from support.routing_policies import loads, prompt, send

from plumage.api.v1alpha1 import parse_pool
from plumage.errors import ConfigurationError
from plumage.routing import Query, Randomness, ReplicaState, RoutingPolicy, make_policy, policy_options
from plumage.routing.base import ScoringPolicy
from plumage.routing.load_policies import RoundRobin


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the classes of this file importable by settings."""
    monkeypatch.setitem(sys.modules, "test_policies", sys.modules[__name__])


def _make(name: str, **options: Any) -> RoutingPolicy:
    return make_policy(name, rng=random.Random(7), **options)


def test_unknown_name_or_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match="Lbgr"):
        _make("Fastest")
    with pytest.raises(ConfigurationError, match="LeastLoad"):
        _make("LeastLoad", nodes=3)


def test_round_robin_takes_turns_by_slot_while_replicas_are_removed() -> None:
    policy = _make("RoundRobin")
    replicas = [ReplicaState(slot) for slot in (0, 2, 5)]
    assert [send(policy, prompt(1), replicas) for _ in range(4)] == [0, 2, 5, 0]
    assert [send(policy, prompt(1), [replicas[0], replicas[2]]) for _ in range(3)] == [5, 0, 5]


def test_random_is_even() -> None:
    policy = _make("Random")
    slots = Counter(send(policy, prompt(1), loads(0, 0, 0, 0)) for _ in range(4000))
    assert all(900 < count < 1100 for count in slots.values())


def test_least_load_counts_requests_of_other_routers() -> None:
    policy = _make("LeastLoad")
    replicas = [ReplicaState(0, routed=1, running=9, waiting=3), ReplicaState(1, routed=4)]
    assert send(policy, prompt(1), replicas) == 1


def test_power_of_two_never_chooses_the_worst() -> None:
    policy = _make("PowerOfTwo")
    slots = Counter(send(policy, prompt(1), loads(0, 5, 9)) for _ in range(300))
    assert slots[2] == 0
    assert slots[0] > slots[1] > 0


def test_prefix_aware_takes_the_longest_prefix_then_the_least_load() -> None:
    policy = _make("PrefixAware")
    assert send(policy, prompt(1, hits={0: 64.0, 1: 128.0}), loads(0, 50, 0)) == 1
    assert send(policy, prompt(1, hits={0: 64.0, 1: 64.0}), loads(3, 2, 0)) == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Lbgr", {"c_mis": 1.0}, "routing policy Lbgr has no option c_mis; its options: c_hit, c_miss, "),
        ("Lbgr", {"c_miss": "1"}, "routing policy Lbgr, option c_miss: Expected `float`, got `str`, got '1'"),
        ("RoundRobin", {"seed": 1}, "routing policy RoundRobin has no option seed; it has none"),
    ],
)
def test_wrong_option_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _make(name, **options)


class Sticky(ScoringPolicy):
    """A policy of a user: always the slot that its setting names."""

    name = "Sticky"

    def __init__(self, *, rng: Randomness, slot: int = 0) -> None:
        super().__init__(rng=rng)
        self._slot = slot

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        return [float(replica.slot != self._slot) for replica in replicas]


class Plain(RoundRobin):
    """A policy that draws no random numbers."""

    def __init__(self) -> None:
        super().__init__(rng=random.Random(1))


def test_import_path_names_a_policy_with_its_options() -> None:
    policy = _make("test_policies:Sticky", slot=2)
    assert policy.choose(prompt(1), loads(0, 0, 9)).slot == 2
    assert policy_options("test_policies:Sticky") == ["slot"]
    with pytest.raises(ConfigurationError, match="routing policy test_policies:Sticky has no option slots"):
        _make("test_policies:Sticky", slots=2)


def test_own_policy_may_do_without_randomness() -> None:
    assert _make("test_policies:Plain").choose(prompt(1), loads(0, 0)).slot == 0
    assert policy_options("test_policies:Plain") == []


class Nameless:
    """All methods of a policy, but no name."""

    choose = routed = first_token = finished = failed = forget = lambda self, *given: None


def test_own_policy_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="test_policies:Nameless must have an attribute name, of type str"):
        _make("test_policies:Nameless")


def test_manifest_cannot_name_code() -> None:
    head = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "chat"}}
    spec = {"model": {"uri": "builtin://tiny-chat"}, "router": {"policy": "test_policies:Sticky"}}
    with pytest.raises(ConfigurationError, match=r"spec\.router\.policy"):
        parse_pool({**head, "spec": spec}, "test")
