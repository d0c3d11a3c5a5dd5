"""The baselines decide as their products do."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from support.routing_policies import loads, prompt, send

from plumage.errors import ConfigurationError
from plumage.routing import Query, ReplicaState, RoutingPolicy
from plumage_bench.baselines.routing import make_policy


def _make(name: str, **options: Any) -> RoutingPolicy:
    return make_policy(name, rng=random.Random(7), **options)


def test_unknown_name_or_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match="KubeAI"):
        _make("KubeAI", nodes=3)
    with pytest.raises(ConfigurationError, match="gateway-rust"):
        _make("SglangCacheAware", preset="nightly")


def test_sglang_matches_above_its_threshold_only() -> None:
    """The fork falls back to the smallest tree, the gateway to the least load."""
    for preset, expected in (("fork", 1), ("gateway-rust", 2)):
        policy = _make("SglangCacheAware", preset=preset)
        send(policy, prompt(1, 2, 3, 4), loads(0, 9, 9))  # otherwise slot 0 would have the smallest tree
        tree = policy._tree  # type: ignore[attr-defined]
        for slot in range(3):
            tree.forget(slot)
        tree.insert(0, (1, 2, 3, 4))
        tree.insert(2, (7, 8))
        assert policy.choose(prompt(1, 2, 3, 5), loads(5, 5, 5)).slot == 0
        assert policy.choose(prompt(1, 2, 5, 6), loads(5, 5, 1)).slot == expected, "half is not above one half"


def test_sglang_uses_load_alone_when_out_of_balance() -> None:
    policy = _make("SglangCacheAware", preset="fork")
    send(policy, prompt(1, 2), loads(0))
    assert policy.choose(prompt(1, 2), loads(32, 0)).slot == 0
    assert policy.choose(prompt(1, 2), loads(33, 0)).slot == 1


def test_sglang_bounds_its_tree() -> None:
    policy = _make("SglangCacheAware", tree_characters=1024, chunk_characters=256)
    for start in range(0, 100, 10):
        send(policy, prompt(*range(start, start + 3)), loads(0))
    assert policy._tree.size(0) == 4  # type: ignore[attr-defined]


def test_llmd_weighs_prefix_queue_and_kv() -> None:
    policy = _make("LlmDWeighted", precise=True)
    replicas = [
        ReplicaState(0, waiting=4, kv_usage=0.5),
        ReplicaState(1, waiting=0, kv_usage=0.1),
        ReplicaState(2, waiting=2, kv_usage=0.0),
    ]
    choice = policy.choose(Query(0.0, 100.0, {0: 100.0}), replicas)
    assert choice.scores == pytest.approx([-(3 + 0 + 1.0), -(0 + 2 + 1.8), -(0 + 1 + 2.0)])
    assert choice.slot == 0


def test_llmd_with_equal_queues_scores_them_all_full() -> None:
    choice = _make("LlmDWeighted").choose(prompt(1), loads(0, 0))
    assert choice.scores == pytest.approx([-4.0, -4.0])


def test_kserve_spreads_cold_requests() -> None:
    policy = _make("LlmDWeighted", cold_weight=2.0)
    slots = [send(policy, prompt(100 + step), loads(0, 0, 0)) for step in range(6)]
    assert Counter(slots) == {0: 2, 1: 2, 2: 2}


def test_dynamo_adds_prefill_and_decode_blocks() -> None:
    policy = _make("Dynamo")
    replicas = [
        ReplicaState(0, prefill_tokens=1600, decode_blocks=10),
        ReplicaState(1, prefill_tokens=0, decode_blocks=150),
    ]
    choice = policy.choose(Query(0.0, 800.0, {1: 1600.0}), replicas)
    assert choice.scores == pytest.approx([150 + 10 + 50, 0 + 150 + 50])
    assert choice.slot == 1


def test_aibrix_skips_the_busy_holder() -> None:
    policy = _make("AIBrix")
    policy._index.insert(0, (1, 2, 3))  # type: ignore[attr-defined]
    policy._index.insert(1, (1,))  # type: ignore[attr-defined]
    assert policy.choose(prompt(1, 2, 3), loads(2, 2, 2)).slot == 0
    assert policy.choose(prompt(1, 2, 3), loads(7, 1, 1)).slot == 1, "load above mean + one deviation"
    assert policy.choose(prompt(1, 2, 3), loads(9, 0, 1)).slot == 1, "out of balance"
    assert policy.choose(prompt(9), loads(2, 1, 2)).slot == 1, "no match"


def test_production_stack_ignores_load_by_default() -> None:
    for options, expected in (({}, 0), ({"load_aware": True}, 1)):
        policy = _make("ProductionStack", **options)
        policy._index.insert(0, (1, 2))  # type: ignore[attr-defined]
        assert policy.choose(prompt(1, 2), loads(50, 0)).slot == expected


def test_kubeai_keeps_a_prefix_until_its_replica_is_over_the_bound() -> None:
    policy = _make("KubeAI")
    texts = [b"prefix-%d" % number for number in range(40)]
    homes = {text: policy.choose(prompt(1, text=text), loads(0, 0, 0, 0)).slot for text in texts}
    assert set(homes.values()) == {0, 1, 2, 3}
    for text, home in homes.items():
        requests = [10, 10, 10, 10]
        assert policy.choose(prompt(9, text=text), loads(*requests)).slot == home
        requests[home] = 20
        assert policy.choose(prompt(9, text=text), loads(*requests)).slot != home


def test_kubeai_moves_few_prefixes_when_a_replica_is_removed() -> None:
    policy = _make("KubeAI")
    queries = [prompt(number) for number in range(300)]
    before = [policy.choose(query, loads(0, 0, 0, 0)).slot for query in queries]
    after = [policy.choose(query, loads(0, 0, 0)).slot for query in queries]
    assert all(new == old for new, old in zip(after, before, strict=True) if old != 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("LlmDWeighted", {"precise": 1}, "option precise: Expected `bool`"),
        ("SglangCacheAware", {"preset": "x"}, "preset: must be one of"),
    ],
)
def test_wrong_option_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _make(name, **options)
