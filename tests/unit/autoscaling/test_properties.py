"""Properties of every decision, for any figures."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.autoscaling import KNEE, pool, spec_of

from plumage.autoscaling import STALE, Autoscaler, PoolLoad, ReplicaLoad

METRICS: tuple[dict[str, Any], ...] = (
    {"type": "CacheHitRatio", "targetPercent": 70},
    {"type": "TotalTokensPerSecond", "target": 1000},
    {"type": "TimeToFirstToken", "targetMilliseconds": 500},
    {"type": "QueueWait", "targetMilliseconds": 100},
    {"type": "KvCacheUsage", "targetPercent": 60},
    {"type": "RequestsInFlight", "target": 10},
)
metrics = st.lists(st.sampled_from(METRICS), min_size=1, unique_by=lambda metric: metric["type"])
policy = st.fixed_dictionaries(
    {"type": st.sampled_from(["Pods", "Percent"]), "value": st.integers(1, 300), "periodSeconds": st.integers(1, 120)}
)
rules = st.fixed_dictionaries(
    {
        "policies": st.lists(policy, min_size=1, max_size=3),
        "selectPolicy": st.sampled_from(["Max", "Min", "Disabled"]),
        "stabilizationWindowSeconds": st.integers(0, 300),
    }
)
behaviors = st.fixed_dictionaries({"scaleUp": rules, "scaleDown": rules})


def replica(rng: Random, at: float) -> ReplicaLoad:
    state = rng.choice(["ready", "ready", "ready", "warming", "broken"])
    return ReplicaLoad(
        id=f"r{rng.randrange(10_000)}",
        ready=state == "ready",
        warming=state == "warming",
        seen=at - rng.choice([0.0, 0.0, 10.0, 2 * STALE]),
        total_tokens_per_second=rng.choice([None, rng.uniform(0, 3000), rng.uniform(0, 3000)]),
        in_flight=rng.choice([None, rng.uniform(0, 30), rng.uniform(0, 30)]),
        held_back=rng.uniform(0, 10),
        kv_usage=rng.choice([None, rng.random(), rng.random()]),
    )


def load_of(rng: Random, at: float, wanted: int) -> PoolLoad:
    busy = rng.random() < 0.7
    return PoolLoad(
        wanted=wanted,
        replicas=tuple(replica(rng, at) for _ in range(rng.randrange(7))),
        seen=at - rng.choice([0.0, 0.0, 10.0, 2 * STALE]),
        arrivals=rng.choice([None, 5]) if busy else 0,
        in_flight=rng.choice([None, 5]) if busy else 0,
        waiting=rng.choice([None, 0, 5]) if busy else 0,
        hit_ratio=rng.choice([None, rng.random()]),
        ttft=rng.choice([None, rng.uniform(0, 2)]),
        queue_wait=rng.choice([None, rng.uniform(0, 1)]),
        held_back=rng.choice([0.0, rng.uniform(0, 1)]),
        curve=rng.choice([None, KNEE]),
        cache=rng.choice([None, 500.0]),
    )


@settings(max_examples=100)
@given(st.integers(0, 1 << 32), metrics, behaviors, st.integers(0, 5), st.integers(0, 15))
def test_decisions_stay_within_bounds_and_rates_and_never_shrink_without_figures(
    seed: int, chosen: list[dict[str, Any]], behavior: dict[str, Any], least: int, more: int
) -> None:
    """A pool that begins within its bounds and follows twenty decisions, 15 s apart."""
    rng = Random(seed)
    spec = spec_of(*chosen, least=least, most=max(1, least + more), behavior=behavior, idleSeconds=60)
    wanted = rng.randint(spec.min_replicas, spec.max_replicas)
    scaler = Autoscaler()
    sizes = [(0.0, wanted)]
    for look in range(1, 20):
        now = 15.0 * look
        load = load_of(rng, now, wanted)
        decision = scaler.decide(spec, load, now)
        assert spec.min_replicas <= decision.replicas <= spec.max_replicas
        assert decision.message
        if decision.replicas < wanted:
            assert not load.warming
            assert not any(proposal.missing for proposal in decision.proposals)
            assert decision.replicas >= lowest(behavior["scaleDown"], sizes, now)
        if decision.replicas > wanted > 0:
            assert decision.replicas <= highest(behavior["scaleUp"], sizes, now)
        if decision.changes:
            scaler.scaled(wanted, decision.replicas, now)
            wanted = decision.replicas
            sizes.append((now, wanted))


def at_start(sizes: list[tuple[float, int]], after: float) -> int:
    """The size at the start of the period."""
    return next((size for at, size in reversed(sizes) if at <= after), sizes[0][1])


def lowest(rules: dict[str, Any], sizes: list[tuple[float, int]], now: float) -> float:
    if rules["selectPolicy"] == "Disabled":
        return sizes[-1][1]
    starts = [(one, at_start(sizes, now - one["periodSeconds"])) for one in rules["policies"]]
    limits = [
        start - one["value"] if one["type"] == "Pods" else start * (1 - one["value"] / 100) - 1 for one, start in starts
    ]
    return min(limits) if rules["selectPolicy"] == "Max" else max(limits)


def highest(rules: dict[str, Any], sizes: list[tuple[float, int]], now: float) -> float:
    if rules["selectPolicy"] == "Disabled":
        return sizes[-1][1]
    starts = [(one, at_start(sizes, now - one["periodSeconds"])) for one in rules["policies"]]
    limits = [
        start + one["value"] if one["type"] == "Pods" else start * (1 + one["value"] / 100) + 1 for one, start in starts
    ]
    return max(limits) if rules["selectPolicy"] == "Max" else min(limits)


def one_way(values: list[float], metric: dict[str, Any]) -> int:
    policies = [{"type": "Pods", "value": 1000, "periodSeconds": 1}]
    quick = {"stabilizationWindowSeconds": 0, "policies": policies}
    spec = spec_of(metric, most=1000, behavior={"scaleUp": quick, "scaleDown": quick})
    scaler = Autoscaler()
    scaler.decide(spec, pool(values), -1.0)
    mean = sum(values) / len(values)
    return scaler.decide(spec, pool(values, ttft=mean, queue_wait=mean), 0.0).replicas


@given(
    st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=12),
    st.floats(1.0, 4.0),
    st.sampled_from(METRICS[1:]),
)
def test_more_load_never_asks_for_fewer_replicas(values: list[float], factor: float, metric: dict[str, Any]) -> None:
    assert one_way([value * factor for value in values], metric) >= one_way(values, metric)


@given(st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=12), metrics)
def test_stale_figures_never_shrink_a_pool(values: list[float], chosen: list[dict[str, Any]]) -> None:
    spec = spec_of(*chosen, least=0, idleSeconds=1)
    scaler = Autoscaler()
    load = pool(
        values, at=0.0, ttft=0.0, queue_wait=0.0, hit_ratio=1.0, curve=KNEE, cache=1000.0, arrivals=0, in_flight=0
    )
    for look in range(1, 40):
        now = STALE + 15.0 * look
        assert scaler.decide(spec, load, now).replicas >= len(values)
