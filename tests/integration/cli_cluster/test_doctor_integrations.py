"""`plumage doctor` and kinds for which the operator has a right only on request: they are reported if a pool needs one,
with the operator's own message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.cluster_cli import SERVING, Plumage, keep
from support.crds import Kinds
from support.waiting import looks

LABELS = {"app.kubernetes.io/name": "plumage", "app.kubernetes.io/component": "operator"}
REMEDY = (
    "Give the operator the right: helm upgrade with integrations.{}=true. "
    "Or remove spec.{}, and delete the object that was made for it."
)
INGRESS = {"ingress": {"host": "chat.example.com"}}
ROUTE = {"httpRoute": {"parentRefs": [{"name": "edge"}]}}


@pytest.fixture(scope="module")
def user(kinds: Kinds) -> str:
    """The operator's user name."""
    return f"system:serviceaccount:{kinds.namespace}:integrations-operator"


@contextmanager
def operator(kinds: Kinds, **environment: str) -> Iterator[None]:
    """The Deployment of an operator that can't start here."""
    variables = [{"name": name, "value": value} for name, value in environment.items()]
    container = {"name": "operator", "image": "none:1", "env": variables}
    pod = {"serviceAccountName": "integrations-operator", "containers": [container]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "integrations-operator", "labels": LABELS},
        "spec": {"selector": {"matchLabels": LABELS}, "template": {"metadata": {"labels": LABELS}, "spec": pod}},
    }
    kinds.kubectl("create", "-f", "-", stdin=json.dumps(deployment))
    try:
        yield
    finally:
        kinds.kubectl("delete", "deployment", "integrations-operator")


@contextmanager
def right_to_ingresses(kinds: Kinds, user: str) -> Iterator[None]:
    kinds.kubectl("create", "role", "ingresses", "--verb=create,delete", "--resource=ingresses.networking.k8s.io")
    account = f"--serviceaccount={kinds.namespace}:integrations-operator"
    kinds.kubectl("create", "rolebinding", "ingresses", "--role=ingresses", account)
    try:
        assert any(
            kinds.kubectl("auth", "can-i", "create", "ingresses", f"--as={user}", check=False).returncode == 0
            for _ in looks(60)
        )
        yield
    finally:
        kinds.kubectl("delete", "role,rolebinding", "ingresses")


def lines(plumage: Plumage, pool: str) -> list[str]:
    """The lines of a report about these kinds."""
    report = plumage("doctor", pool).stdout.splitlines()
    about = ("Ingress", "HTTPRoute", "PodMonitor", "InferencePool (", "ingresses", "httproutes", "podmonitors")
    return [line.strip() for line in report if any(word in line for word in about)]


def test_doctor_is_silent_without_integrations(plumage: Plumage, kinds: Kinds) -> None:
    keep(kinds, "plain", SERVING, monitoring={"enabled": False, "labels": {"release": "prometheus"}})
    with operator(kinds):
        assert lines(plumage, "plain") == []


def test_doctor_names_the_switch_that_grants_a_missing_permission(plumage: Plumage, kinds: Kinds, user: str) -> None:
    keep(kinds, "asks", SERVING, router=INGRESS)
    who = f"pool {kinds.namespace}/asks asks for them"
    with operator(kinds):
        refused = f"bad  {user} may not create ingresses, and {who} → {REMEDY.format('ingress', 'router.ingress')}"
        assert lines(plumage, "asks") == [refused]
        assert plumage("doctor", "asks").returncode == 1
        with right_to_ingresses(kinds, user):
            (unwatched,) = lines(plumage, "asks")
            assert unwatched.startswith(f"warn  {user} may create ingresses, but does not watch them")
            assert unwatched.endswith("→ helm upgrade with integrations.ingress=true")
    with operator(kinds, PLUMAGE_INTEGRATIONS="gatewayApi,ingress"), right_to_ingresses(kinds, user):
        assert lines(plumage, "asks") == [f"ok  the cluster serves Ingress, and {user} may write it"]
    with operator(kinds, PLUMAGE_WATCH_NAMESPACES="elsewhere"):
        assert lines(plumage, "asks") == [], "it is not this one's pool"


@pytest.mark.parametrize(
    ("kind", "group", "field", "spec"),
    [
        ("HTTPRoute", "gateway.networking.k8s.io/v1", "router.httpRoute", {"router": ROUTE}),
        ("PodMonitor", "monitoring.coreos.com/v1", "monitoring", {"monitoring": {"enabled": True}}),
        (
            "InferencePool",
            "inference.networking.k8s.io/v1",
            "router.endpointPicker.inferencePool",
            {"router": {"endpointPicker": {"inferencePool": {}}}},
        ),
    ],
)
def test_doctor_reports_a_kind_that_the_cluster_does_not_serve(
    plumage: Plumage, kinds: Kinds, kind: str, group: str, field: str, spec: dict[str, object]
) -> None:
    name = f"wants-{kind.lower()}"
    keep(kinds, name, SERVING, **spec)
    with operator(kinds):
        what = f"bad  the cluster does not serve {kind} ({group}), and pool {kinds.namespace}/{name} asks for it"
        remedy = f"install its CRD, then restart the operator; or remove spec.{field}"
        assert lines(plumage, name) == [f"{what} → {remedy}"]


def test_doctor_reports_several_pools_on_one_line(plumage: Plumage, kinds: Kinds) -> None:
    names = [f"many-{number}" for number in range(5)]
    for name in names:
        keep(kinds, name, SERVING, monitoring={"enabled": True})
    found = [line for line in plumage("doctor").stdout.splitlines() if "does not serve PodMonitor" in line]
    assert len(found) == 1
    assert f"and pools {kinds.namespace}/many-0, " in found[0]
    assert " more ask for it → " in found[0]


def test_doctor_names_objects_made_before_switch_off(plumage: Plumage, kinds: Kinds, user: str) -> None:
    for name in ("closed", "other"):
        keep(kinds, name, SERVING)
    backend = {"service": {"name": "closed-router", "port": {"name": "http"}}}
    ours = {"app.kubernetes.io/managed-by": "plumage", "inference.plumage.dev/pool": "closed"}
    left = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "closed-router", "labels": ours},
        "spec": {"defaultBackend": backend},
    }
    theirs = {**left, "metadata": {"name": "theirs"}}
    for thing in (left, theirs):
        kinds.kubectl("create", "-f", "-", stdin=json.dumps(thing))
    place = f"{kinds.namespace}/closed-router"
    what = f"warn  Ingress {place} exists, its pool does not ask for it, and no operator deletes it"
    remedy = f"kubectl -n {kinds.namespace} delete ingresses.networking.k8s.io closed-router"
    with operator(kinds):
        assert lines(plumage, "closed") == [f"{what} → {remedy}"]
        assert lines(plumage, "other") == []
    with operator(kinds, PLUMAGE_INTEGRATIONS="ingress"):
        assert lines(plumage, "closed") == [f"{what} → {remedy}"], (
            "the operator watches the kind, but may not delete it"
        )
        with right_to_ingresses(kinds, user):
            assert lines(plumage, "closed") == [], "the operator will delete it"
