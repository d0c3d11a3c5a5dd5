"""The fingerprint of what a reconcile reads: every relevant change changes it, and no other change does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import CONFIG, World

from plumage.cluster import CORDON, PAUSE
from plumage_operator.controller.plan import DELETION_COST, plan_changes
from plumage_operator.controller.reconcile import UnchangedPools, fingerprint_of
from plumage_operator.observed import Observed, ScalingDecision

_ENGINE = ("Deployment", "chat-engine")


@pytest.fixture
def settled() -> World:
    world = World()
    world.converge()
    assert plan_changes(world.observed(), CONFIG) == ()
    return world


def engine(world: World) -> dict[str, Any]:
    return world.objects[_ENGINE]


def test_statuses_do_not_change_the_fingerprint(settled: World) -> None:
    before = fingerprint_of(settled.observed())
    engine(settled)["status"] = {"replicas": 1, "readyReplicas": 0}
    engine(settled)["metadata"]["resourceVersion"] = "999999"
    settled.pool["metadata"]["resourceVersion"] = "999998"
    settled.pool["status"] = {**settled.pool["status"], "readyReplicas": 0}
    for pod in settled.pods.values():
        pod["status"] = {"phase": "Failed"}
    assert fingerprint_of(settled.observed()) == before
    assert plan_changes(settled.observed(), CONFIG) == ()


def test_pods_that_come_and_go_do_not_change_the_fingerprint(settled: World) -> None:
    labels = {"inference.plumage.dev/pool": "chat", "app.kubernetes.io/component": "engine"}
    pods = tuple({"kind": "Pod", "metadata": {"name": f"new-{number}", "labels": labels}} for number in range(3))
    assert fingerprint_of(settled.observed(pods=pods)) == fingerprint_of(settled.observed(pods=()))
    assert plan_changes(settled.observed(pods=pods), CONFIG) == ()


def test_pod_that_needs_a_deletion_cost_changes_the_fingerprint(settled: World) -> None:
    decision = ScalingDecision(3, "True", "AtTarget", "as it was", deletion_costs={"late": 3})
    late = {"kind": "Pod", "metadata": {"name": "late", "labels": {"app.kubernetes.io/component": "engine"}}}
    there, away = settled.observed(pods=(late,), scaling=decision), settled.observed(pods=(), scaling=decision)
    assert fingerprint_of(there) != fingerprint_of(away)


def _spec(world: World) -> None:
    world.pool["spec"]["replicas"] = 5
    world.pool["metadata"]["generation"] += 1


def _gone(world: World) -> None:
    del world.objects["Service", "chat-router"]


def _edited(world: World) -> None:
    engine(world)["spec"]["replicas"] = 9


def _disowned(world: World) -> None:
    engine(world)["metadata"]["ownerReferences"] = []


def _unmarked(world: World) -> None:
    engine(world)["metadata"]["annotations"] = {}


@pytest.mark.parametrize("change", [_spec, _gone, _edited, _disowned, _unmarked])
def test_relevant_changes_change_the_fingerprint(settled: World, change: Callable[[World], None]) -> None:
    before = fingerprint_of(settled.observed())
    change(settled)
    assert plan_changes(settled.observed(), CONFIG)
    assert fingerprint_of(settled.observed()) != before


def test_pause_and_its_end_change_the_fingerprint(settled: World) -> None:
    _edited(settled)
    settled.pool["metadata"]["annotations"] = {PAUSE: "true"}
    paused = fingerprint_of(settled.observed())
    assert plan_changes(settled.observed(), CONFIG) == ()
    del settled.pool["metadata"]["annotations"]
    assert fingerprint_of(settled.observed()) != paused


def _annotated(observed: Observed, annotation: str) -> Observed:
    pods = copy.deepcopy(observed.pods)
    pods[0]["metadata"].setdefault("annotations", {})[annotation] = "true"
    return replace(observed, pods=pods)


@pytest.mark.parametrize("annotation", [CORDON, DELETION_COST])
def test_pod_annotations_change_the_fingerprint(settled: World, annotation: str) -> None:
    labels = {"inference.plumage.dev/pool": "chat", "app.kubernetes.io/component": "engine"}
    pod = {"kind": "Pod", "metadata": {"name": "chat-engine-1", "labels": labels}, "status": {}}
    observed = settled.observed(pods=(pod,))
    assert fingerprint_of(_annotated(observed, annotation)) != fingerprint_of(observed)


def test_scaling_decision_changes_the_fingerprint(settled: World) -> None:
    decision = ScalingDecision(3, "True", "AtTarget", "as it was")
    marks = {
        fingerprint_of(settled.observed(scaling=scaling))
        for scaling in (
            None,
            decision,
            replace(decision, desired=4),
            replace(decision, deletion_costs={"chat-engine-1": 3}),
        )
    }
    assert len(marks) == 4
    assert fingerprint_of(settled.observed(scaling=replace(decision, message="other words"))) in marks


def test_key_is_unchanged_between_two_actions() -> None:
    unchanged, key = UnchangedPools(), ("default", "chat")
    assert not unchanged.is_unchanged(key, 1)
    unchanged.record(key, 1, unchanged=True)
    assert unchanged.is_unchanged(key, 1)
    assert not unchanged.is_unchanged(key, 2)
    unchanged.record(key, 2, unchanged=False)
    assert not unchanged.is_unchanged(key, 1)
    unchanged.record(key, 2, unchanged=True)
    unchanged.forget(key)
    assert not unchanged.is_unchanged(key, 2)
