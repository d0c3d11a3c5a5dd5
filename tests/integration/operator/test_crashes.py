"""The operator dies between two actions of a plan, at places that a test chooses, and its next start makes of it what
an operator that nothing happened to would have made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.operator_fleet import Fleet, children, pool

from plumage_operator.children import APPLIED
from plumage_operator.cluster.crash_point import CRASHED, VARIABLE

pytestmark = pytest.mark.timeout(600)

ALL = 17
NAME = "crashes"
SMALL = "  replicas: 1"
LARGE = "  replicas: 3"


@pytest.fixture
def alone(fleet: Fleet) -> Iterator[None]:
    """No other operator than the test's own."""
    for name in list(fleet.operators):
        fleet.stop(name)
    yield
    for name in list(fleet.operators):
        fleet.stop(name, kill=True)
    fleet.start()


@pytest.mark.usefixtures("alone")
def test_a_creation_that_is_cut_short_is_ended_by_the_next_start(fleet: Fleet, namespace: str) -> None:
    actions, children_made = cut_short(fleet, namespace, None, SMALL)
    assert (actions, children_made) == (ALL, ALL)


@pytest.mark.usefixtures("alone")
def test_a_scale_down_that_is_cut_short_is_ended_by_the_next_start(fleet: Fleet, namespace: str) -> None:
    actions, children_left = cut_short(fleet, namespace, LARGE, SMALL)
    assert (actions > 0, children_left) == (True, ALL)


def cut_short(fleet: Fleet, namespace: str, before: str | None, after: str) -> tuple[int, int]:
    """Cuts the plan after its first, its middle and its last change of a child. Answers how many changes it has, and
    how many children there are in the end."""
    begin(fleet, namespace, before)
    old = marks(fleet, namespace)
    apply(fleet, namespace, after)
    start(fleet, namespace)
    right = settled(fleet, namespace)
    new = marks(fleet, namespace)
    actions = sum(old.get(key) != new.get(key) for key in old.keys() | new.keys())
    for crash_after in sorted({1, (actions + 1) // 2, actions}):
        begin(fleet, namespace, before)
        apply(fleet, namespace, after)
        start(fleet, namespace, **{VARIABLE: str(crash_after)})
        assert fleet.operators[NAME].wait(90) == CRASHED
        del fleet.operators[NAME]
        left = state(fleet, namespace)
        if before is None:
            assert len(left["children"]) == crash_after
        assert (left["children"] == right["children"]) is (crash_after == actions), "it died in mid-plan"
        assert left["status"] != right["status"], "the status is written last"
        start(fleet, namespace)
        fleet.until(lambda: state(fleet, namespace) == right)
    return actions, len(right["children"])


def begin(fleet: Fleet, namespace: str, before: str | None) -> None:
    """The pool as it was before the plan, settled, and no operator."""
    if before is None:
        fleet.kubectl("-n", namespace, "delete", "ppool", "chat", "--ignore-not-found")
        fleet.until(lambda: not children(fleet, namespace))
    else:
        apply(fleet, namespace, before)
        if NAME not in fleet.operators:
            start(fleet, namespace)
        settled(fleet, namespace)
    if NAME in fleet.operators:
        fleet.stop(NAME, kill=True)  # of the same name, the next takes its Lease at once


def start(fleet: Fleet, namespace: str, **environment: str) -> None:
    """For this namespace alone: what other tests left is not counted."""
    fleet.start(NAME, PLUMAGE_WATCH_NAMESPACES=namespace, **environment)


def apply(fleet: Fleet, namespace: str, spec: str) -> None:
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(spec))


def marks(fleet: Fleet, namespace: str) -> dict[tuple[str, str], str]:
    """What each child was last applied as."""
    found = children(fleet, namespace).items()
    return {key: child["metadata"]["annotations"][APPLIED] for key, child in found if not goes(child)}


def settled(fleet: Fleet, namespace: str) -> dict[str, Any]:
    """The state once it is told of the present spec and moves no more."""

    def quiet() -> dict[str, Any] | None:
        found = fleet.get(namespace, "ppool", "chat")
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return None
        if status.get("updatedReplicas") != found["spec"]["replicas"]:  # old pods stay: no new one is ever ready here
            return None
        first = state(fleet, namespace)
        time.sleep(1.0)  # longer than a burst of changes is gathered for
        return first if state(fleet, namespace) == first else None

    return dict(fleet.until(quiet))


def state(fleet: Fleet, namespace: str) -> dict[str, Any]:
    """What the operator is answerable for, less what differs between two objects of the same content."""
    status = fleet.get(namespace, "ppool", "chat").get("status", {})
    conditions = status.get("conditions", [])
    said = {one["type"]: (one["status"], one["reason"], one["message"]) for one in conditions}
    figures = {name: value for name, value in status.items() if name not in ("conditions", "observedGeneration")}
    found = {key: content(child) for key, child in children(fleet, namespace).items() if not goes(child)}
    return {"children": found, "status": (figures, said)}


def goes(child: dict[str, Any]) -> bool:
    return "deletionTimestamp" in child["metadata"]


def content(child: dict[str, Any]) -> dict[str, Any]:
    given = ("clusterIP", "clusterIPs")  # by the API server, from a pool of addresses
    spec = {name: value for name, value in child.get("spec", {}).items() if name not in given}
    others = {name: child.get(name) for name in ("data", "subjects", "roleRef", "automountServiceAccountToken")}
    return {"labels": child["metadata"]["labels"], "spec": spec, **others}
