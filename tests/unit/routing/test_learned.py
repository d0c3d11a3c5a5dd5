"""Learned figures between routers: packed, merged, and used as a start by a policy without experience."""

from __future__ import annotations

import random
from math import inf, nan

import msgspec
import pytest

from plumage.errors import ConfigurationError
from plumage.routing import Lbgr, LbgrSettings, Query, ReplicaState, make_policy
from plumage.routing.learned import MOST_UPDATES, Learned, merge, pack, unpack
from plumage.routing.shared import Learner

ONE = Learned(0.2, 30.0, (0.1, 0.2, 0.3, 0.4), (1.0, 2.0, 3.0, 4.0), 100)
OTHER = Learned(0.6, 10.0, (0.5, 0.6, 0.7, 0.8), (5.0, 6.0, 7.0, 8.0), 300)


def _policy(seed: int = 1) -> Lbgr:
    return Lbgr(rng=random.Random(seed), settings=LbgrSettings())


def _serve(policy: Lbgr, speeds: list[float], count: int, start: float = 0.0) -> float:
    """Requests of a thousand tokens, one after another at each replica, at its seconds per thousand tokens."""
    now = start
    states = [ReplicaState(slot) for slot in range(len(speeds))]
    for number in range(count):
        state = states[number % len(speeds)]
        query = Query(now, 1000.0, {})
        ticket = policy.routed(query, policy.choose(query, [state]))
        now += speeds[state.slot]
        policy.first_token(ticket, now)
        policy.finished(ticket, now, 0.0)
    return now


def test_packed_figures_read_back() -> None:
    assert unpack(pack("Lbgr", {"a": ONE, "b": OTHER}), "Lbgr") == {"a": ONE, "b": OTHER}
    assert unpack(pack("LbgrPaper", {"a": ONE}), "Lbgr") == {}, "figures of another policy have another meaning"


@pytest.mark.parametrize(
    "damage", [{"c_miss": 0.0}, {"c_miss": nan}, {"ttft": (inf, 0.0, 0.0, 0.0)}, {"latency": (0.0, 0.0, 2e6, 0.0)},
               {"experience": -1.0}, {"updates": 0}]
)  # fmt: skip
def test_impossible_figures_are_refused(damage: dict[str, object]) -> None:
    fields = {name: getattr(ONE, name) for name in ONE.__struct_fields__} | damage
    data = msgspec.msgpack.encode(("Lbgr", {"a": list(fields.values())}))
    with pytest.raises(ConfigurationError, match="can't be read"):
        unpack(data, "Lbgr")


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x00" * 40, msgspec.msgpack.encode(["Lbgr", {"a": [1]}])])
def test_bytes_without_an_offer_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        unpack(data, "Lbgr")


def test_figures_of_several_routers_are_weighted_by_outcomes_and_age() -> None:
    both = merge([(0.0, {"a": ONE, "b": ONE}), (0.0, {"a": OTHER})])
    assert both["b"] == ONE
    assert both["a"].c_miss == pytest.approx((0.2 * 100 + 0.6 * 300) / 400)
    assert both["a"].ttft[0] == pytest.approx((0.1 * 100 + 0.5 * 300) / 400)
    assert both["a"].updates == 300
    aged = merge([(0.0, {"a": ONE}), (7200.0, {"a": OTHER})])
    assert aged["a"].c_miss == pytest.approx((0.2 * 100 + 0.6 * 75) / 175), "halved every hour"
    assert merge([]) == {}


def test_policy_shares_its_own_outcomes_only() -> None:
    policy = _policy()
    assert isinstance(policy, Learner)
    assert not isinstance(make_policy("RoundRobin", rng=random.Random(1)), Learner)
    assert policy.learned(0) is None
    _serve(policy, [0.2, 0.8], 40)
    assert policy.learned(0) is None, "20 outcomes without those before the speed was known"
    _serve(policy, [0.2, 0.8], 200, 1000.0)
    first, second = policy.learned(0), policy.learned(1)
    assert first is not None
    assert second is not None
    assert first.c_miss == pytest.approx(0.2, rel=0.1)
    assert second.c_miss == pytest.approx(0.8, rel=0.1)
    assert policy.learned(7) is None


def test_new_router_starts_from_the_figures_of_others() -> None:
    old, new, cold = _policy(), _policy(2), _policy(2)
    now = _serve(old, [0.2, 0.8], 400)
    for slot in (0, 1):
        learned = old.learned(slot)
        assert learned is not None
        assert new.adopt(slot, learned, now)
        assert not new.adopt(slot, OTHER, now), "once is enough"
    query = Query(now, 1000.0, {})
    states = [ReplicaState(slot) for slot in range(2)]
    unlearned = cold.choose(query, states).scores
    adopted = new.choose(query, states).scores
    assert unlearned[0] == unlearned[1], "without them the replicas look alike"
    assert adopted[1] / adopted[0] == pytest.approx(0.8 / 0.2, rel=0.3)
    first = {new.choose(Query(now + step, 1000.0, {}), states).slot for step in range(20)}
    assert first == {0}
    assert new.learned(0) is None, "received figures are not shared again"
    _serve(new, [0.2, 0.8], 100, now)
    shared = new.learned(1)
    assert shared is not None
    assert shared.updates == 50
    assert shared.updates <= MOST_UPDATES


def test_own_outcomes_are_not_overwritten_and_a_new_replica_on_the_slot_starts_again() -> None:
    policy = _policy()
    _serve(policy, [0.2], 30)
    assert not policy.adopt(0, OTHER, 100.0)
    policy.forget(0)
    assert policy.adopt(0, OTHER, 100.0), "another replica has the slot"
    assert not policy.adopt(1, Learned(0.2, 3.0, ONE.ttft, ONE.latency, 3), 100.0), "too few outcomes give no figures"
