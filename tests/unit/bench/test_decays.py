"""The sweep over the decay interval of W reaches the policies."""

from __future__ import annotations

import pytest

from plumage.routing import Query, ReplicaState
from plumage_bench.routing.contenders import DECAYS, Contender


def _left_after(contender: Contender, seconds: float) -> float:
    """Share of a request's service that its replica still seems to owe."""
    policy = contender.make(1, 16)
    chain = tuple(range(1, 64))
    policy.routed(first := Query(0.0, 1024.0, {}, chain), policy.choose(first, [ReplicaState(0)]))
    # Another prompt: it needs as much there as at the idle replica.
    later = policy.choose(Query(seconds, 1024.0, {}, tuple(range(100, 163))), [ReplicaState(0), ReplicaState(1)])
    return (later.scores[0] - later.scores[1]) / later.scores[1]


@pytest.mark.parametrize("contender", DECAYS, ids=lambda contender: contender.label)
def test_work_fades_by_a_32nd_each_interval(contender: Contender) -> None:
    interval = contender.options["decay_interval"]
    assert _left_after(contender, 0.4) == pytest.approx((31 / 32) ** (0.4 / interval), rel=1e-6)


def test_sweep_covers_the_range_of_the_paper_for_both_forms() -> None:
    asked = {(contender.policy, contender.options["decay_interval"]) for contender in DECAYS}
    assert asked == {(policy, at) for policy in ("LbgrPaper", "LbgrCode") for at in (0.01, 0.02, 0.04, 0.08)}
