"""A plan applies a scaling decision: the Deployment's size, deletion costs before it, and an event with the numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.fleets import START, observed, pod

from plumage.autoscaling import Decision
from plumage_operator.autoscaling.scaler import autoscaled_decision
from plumage_operator.config import OperatorConfig
from plumage_operator.controller.actions import Action, Annotate, Apply, EmitEvent, WriteStatus
from plumage_operator.controller.plan import plan_changes, plan_status
from plumage_operator.observed import Observed, ScalingDecision
from plumage_operator.resources.context import deployed_replicas, read_pool

SPEC = {
    "autoscaling": {"minReplicas": 1, "maxReplicas": 9, "metrics": [{"type": "TotalTokensPerSecond", "target": 100}]}
}
CONFIG = OperatorConfig("plumage:test", "engine:test")


def decision(before: int, after: int, reason: Any, **costs: int) -> ScalingDecision:
    decision = Decision(before, after, after, reason, f"{before} → {after} replicas: because.")
    return autoscaled_decision(decision, hit_ratio=0.5, last_scale_time=None, costs=costs)


def seen(desired: int, scaling: ScalingDecision) -> Observed:
    found = observed(SPEC, [pod("e0"), pod("e1")], desired)
    found.pool["status"] = {"desiredReplicas": desired}  # type: ignore[index]
    return replace(found, scaling=scaling)


def engines(actions: tuple[Action, ...]) -> Any:
    [child] = [one.child for one in actions if isinstance(one, Apply) and one.child["kind"] == "Deployment"
               and one.child["metadata"]["name"] == "chat-engine"]  # fmt: skip
    return child["spec"]["replicas"]


def test_decision_sets_the_size_the_status_and_one_event() -> None:
    grown = seen(2, decision(2, 5, "ScaledUp"))
    assert engines(plan_changes(grown, CONFIG)) == 5
    actions = plan_status(grown, CONFIG, START)
    assert EmitEvent("Normal", "ScaledUp", "2 → 5 replicas: because.") in actions
    [status] = [one.status for one in actions if isinstance(one, WriteStatus)]
    assert (status["desiredReplicas"], status["hitRatioPercent"]) == (5, 50)
    assert status["autoscaling"]["decision"] == "2 → 5 replicas: because."
    observed = seen(5, decision(2, 5, "ScaledUp"))
    assert not [
        one for one in plan_status(observed, CONFIG, START) if isinstance(one, EmitEvent) and one.reason == "ScaledUp"
    ]


def test_deployment_of_an_earlier_pool_is_ignored() -> None:
    found = observed(SPEC, [], 7)
    metadata = found.children["Deployment", "chat-engine"]["metadata"]
    asked = []
    for uid in ("u1", "another"):
        metadata["ownerReferences"] = [{"uid": uid, "controller": True}]
        asked.append(deployed_replicas(found, read_pool(found.pool)))
    assert asked == [7, None]


def test_costs_are_written_before_the_deployment_shrinks() -> None:
    shrunk = plan_changes(seen(2, decision(2, 1, "ScaledDown", e1=-1)), CONFIG)
    assert isinstance(shrunk[0], Annotate)
    assert (shrunk[0].pod, dict(shrunk[0].annotations)) == ("e1", {"controller.kubernetes.io/pod-deletion-cost": "-1"})
    assert engines(shrunk) == 1
