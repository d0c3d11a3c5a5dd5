"""The operator dies after each action of a plan. Its next start completes the plan as an operator without a crash
would."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.operator_fleet import CHILDREN, Fleet, pool
from support.operator_lives import lives

from plumage.cluster import OURS
from plumage_operator.controller.gateway_plan import CONFIG_SEEN
from plumage_operator.resources import APPLIED

pytestmark = pytest.mark.timeout(600)

Found = dict[tuple[str, str], dict[str, Any]]  # objects, by kind and name

ALL = 17  # children of a pool
ROUTERS = 7  # children of a gateway
OWNERS = ("InferencePool", "InferenceGateway")
NAME = "crashes"
SMALL = "  replicas: 1"
LARGE = "  replicas: 3"
OTHER = """
  replicas: 1
  router: {service: {port: 9000}}
  directory: {redisRef: {url: 'redis://cache:6379'}}
"""
BEHIND = """
  replicas: 1
  router: {gatewayRef: {name: front}}
"""
GATEWAY = """
---
apiVersion: inference.plumage.dev/v1alpha1
kind: InferenceGateway
metadata: {name: front}
spec:
  replicas: 1
  models: [{name: chat, pools: [{poolRef: {name: chat}}]}]
"""


@pytest.fixture
def alone(fleet: Fleet) -> Iterator[None]:
    """Only the test's own operator runs."""
    for name in list(fleet.operators):
        fleet.stop(name)
    yield
    for name in list(fleet.operators):
        fleet.stop(name, kill=True)
    fleet.start()


@pytest.mark.usefixtures("alone")
def test_creation_cut_after_each_action_completes(fleet: Fleet, namespace: str, tmp_path: Path) -> None:
    (keys, *cuts), children_made = cut_everywhere(fleet, namespace, tmp_path / "lives", None, SMALL)
    assert keys.startswith("MakeSecret chat-keys-")
    assert [what.split()[0] for what in cuts[:ALL]] == ["Apply"] * ALL == ["Apply"] * children_made
    words = [what.split()[:2] for what in cuts[ALL:]]
    assert words[:2] == [["EmitEvent", "Starting"], ["EmitEvent", "Resizing"]]
    assert {what for what, _ in words[2:]} == {"WriteStatus"}
    listed = fleet.get(namespace, "events")["items"]
    uid = fleet.get(namespace, "ppool", "chat")["metadata"]["uid"]
    counts = [one["count"] for one in listed if one["involvedObject"].get("uid") == uid]
    assert max(counts) > 1, "an event from before the crash is counted again, not duplicated"


@pytest.mark.usefixtures("alone")
def test_change_cut_after_each_action_completes(fleet: Fleet, namespace: str, tmp_path: Path) -> None:
    cuts, children_left = cut_everywhere(fleet, namespace, tmp_path / "lives", SMALL, OTHER)
    assert {what.split()[0] for what in cuts} == {"Apply", "Delete", "WriteStatus"}
    assert len([what for what in cuts if what.startswith("Delete")]) == ALL - children_left
    templates = fleet.get(namespace, "replicasets", "-l", "app.kubernetes.io/component=engine")["items"]
    assert len(templates) == 2, "engines are rolled by it"


@pytest.mark.usefixtures("alone")
def test_scale_down_cut_after_each_action_completes(fleet: Fleet, namespace: str, tmp_path: Path) -> None:
    cuts, children_left = cut_everywhere(fleet, namespace, tmp_path / "lives", LARGE, SMALL)
    assert ("Apply Deployment chat-engine" in cuts, children_left) == (True, ALL)


@pytest.mark.usefixtures("alone")
def test_gateway_creation_cut_after_each_action_completes(fleet: Fleet, namespace: str, tmp_path: Path) -> None:
    cuts, _ = cut_everywhere(fleet, namespace, tmp_path / "lives", BEHIND, BEHIND + GATEWAY)
    applied = [what.split()[1:] for what in cuts if what.startswith("Apply")]
    assert (len(applied), {name for _, name in applied}) == (ROUTERS, {"front-gateway"}), "the pool keeps all it has"
    assert {what.split()[0] for what in cuts} == {"Annotate", "Apply", "EmitEvent", "WriteStatus"}
    assert fleet.get(namespace, "pgw", "front")["status"]["pools"] == ["chat"]


def cut_everywhere(fleet: Fleet, namespace: str, record: Path, before: str | None, after: str) -> tuple[list[str], int]:
    """Interrupts the plan after each action: a change of a child, an event, a status. Returns these actions, and the
    final number of children."""
    begin(fleet, namespace, before)
    old = marks(things(fleet, namespace))
    halt(fleet)
    apply(fleet, namespace, after)
    start(fleet, namespace)
    right = settled(fleet, namespace)
    new = marks(things(fleet, namespace))
    begin(fleet, namespace, before)
    fleet.until(lambda: marks(things(fleet, namespace)) == old)  # a name is free once its deleted object has gone
    halt(fleet)
    apply(fleet, namespace, after)
    start(fleet, namespace, record)
    fleet.until(lambda: state(things(fleet, namespace)) == right and _ends(record))
    cuts = [" ".join(life[-1].split()[:3]) for life in lives(record)]
    changes = [what for what in cuts if what.startswith(("Apply", "Delete"))]
    assert len(changes) == len(set(changes)) == sum(old.get(key) != new.get(key) for key in old.keys() | new.keys())
    return cuts, len(right["children"])


def begin(fleet: Fleet, namespace: str, before: str | None) -> None:
    """The pool before the plan, settled."""
    if before is None:
        fleet.kubectl("-n", namespace, "delete", "ppool", "chat", "--ignore-not-found")
        fleet.until(lambda: not children(things(fleet, namespace)))
    else:
        fleet.kubectl("-n", namespace, "delete", "pgw", "--all")
        apply(fleet, namespace, before)
        if NAME not in fleet.operators:
            start(fleet, namespace)
        settled(fleet, namespace)


def halt(fleet: Fleet) -> None:
    """The next operator has the same name, so it takes the Lease at once."""
    if NAME in fleet.operators:
        fleet.stop(NAME, kill=True)


def start(fleet: Fleet, namespace: str, record: Path | None = None) -> None:
    """For this namespace alone, so that objects of other tests do not count. record: it dies after each action."""
    fleet.start(NAME, lives=record, PLUMAGE_WATCH_NAMESPACES=namespace)


def apply(fleet: Fleet, namespace: str, spec: str) -> None:
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(spec))


def things(fleet: Fleet, namespace: str) -> Found:
    """The pool, its gateway, and the objects that the operator and the cluster's controllers made for them, by one
    kubectl."""
    listed = fleet.get(namespace, f"ppool,pgw,pods,{CHILDREN}").get("items", [])
    return {(one["kind"], one["metadata"]["name"]): one for one in listed}


def children(found: Found) -> Found:
    """The children of the pool and of its gateway."""
    made = {key: one for key, one in found.items() if key[0] != "Pod"}
    return {key: one for key, one in made.items() if OURS.items() <= one["metadata"].get("labels", {}).items()}


def marks(found: Found) -> dict[tuple[str, str], str]:
    """The annotation of each child's last applied content."""
    here = children(found).items()
    return {key: child["metadata"]["annotations"][APPLIED] for key, child in here if not is_deleting(child)}


def settled(fleet: Fleet, namespace: str) -> dict[str, Any]:
    """The state when the status is of the present spec and changes no more."""

    def quiet() -> dict[str, Any] | None:
        found = things(fleet, namespace)
        if not all(_is_current(one, found) for key, one in found.items() if key[0] in OWNERS):
            return None
        time.sleep(1.0)  # longer than the operator waits for further changes
        return state(found) if state(things(fleet, namespace)) == state(found) else None

    return dict(fleet.until(quiet))


def _is_current(owner: dict[str, Any], found: Found) -> bool:
    """Whether its status is of its present spec, and counts all replicas."""
    status, spec = owner.get("status", {}), owner["spec"]
    if status.get("observedGeneration") != owner["metadata"]["generation"]:
        return False
    if owner["kind"] == "InferenceGateway":
        return bool(status.get("replicas") == spec["replicas"] == seen(found))
    return bool(status.get("updatedReplicas") == spec["replicas"])  # old pods stay, since no new pod becomes ready here


def state(found: Found) -> dict[str, Any]:
    """Everything that the operator writes, without fields that differ between two objects of the same content."""
    statuses = {key: status_of(one) for key, one in found.items() if key[0] in OWNERS}
    made = {key: _without_uids(content(child)) for key, child in children(found).items() if not is_deleting(child)}
    return {"children": made, "status": statuses, "seen": seen(found)}


def _without_uids(child: Any) -> Any:
    """The Secret of a pool's keys has the pool's UID in its name; a configuration's hash depends on that name."""
    text = re.sub(r"(chat-keys-)[0-9a-f-]+", r"\1UID", json.dumps(child))
    return json.loads(re.sub(r'(config-hash": ")[0-9a-f]+', r"\1HASH", text))


def seen(found: Found) -> int:
    """The gateway's routers whose kubelets read its present ConfigMap."""
    mark = marks(found).get(("ConfigMap", "front-gateway"))
    pods = [
        one["metadata"].get("annotations", {}) for key, one in found.items() if key[0] == "Pod" and not is_deleting(one)
    ]
    return sum(one[CONFIG_SEEN] == mark for one in pods if CONFIG_SEEN in one)


def status_of(thing: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its status: figures, and conditions without their times."""
    status = thing.get("status", {})
    conditions = status.get("conditions", [])
    said = {one["type"]: (one["status"], one["reason"], one["message"]) for one in conditions}
    return {name: value for name, value in status.items() if name not in ("conditions", "observedGeneration")}, said


def _ends(record: Path) -> bool:
    """Whether the last action may be the end of a plan: its status, or what follows when pods appear."""
    done = lives(record)
    return bool(done) and done[-1][-1].startswith(("WriteStatus", "Annotate"))


def is_deleting(child: dict[str, Any]) -> bool:
    return "deletionTimestamp" in child["metadata"]


def content(child: dict[str, Any]) -> dict[str, Any]:
    given = ("clusterIP", "clusterIPs")  # assigned by the API server
    spec = {name: value for name, value in child.get("spec", {}).items() if name not in given}
    others = {name: child.get(name) for name in ("data", "subjects", "roleRef", "automountServiceAccountToken")}
    return {"labels": child["metadata"]["labels"], "spec": spec, **others}
