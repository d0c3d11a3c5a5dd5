"""The rights that the chart grants, verb by verb. An administrator is asked to grant this table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

CHILD = {"create", "delete", "get", "list", "patch", "watch"}
OPERATOR = {
    "inference.plumage.dev/inferencepools": {"list", "watch"},
    "inference.plumage.dev/inferencegateways": {"list", "watch"},
    "inference.plumage.dev/inferencepools/status": {"patch"},
    "inference.plumage.dev/inferencegateways/status": {"patch"},
    "/configmaps": CHILD,
    "/serviceaccounts": CHILD,
    "/services": CHILD,
    "apps/deployments": CHILD,
    "networking.k8s.io/networkpolicies": CHILD,
    "policy/poddisruptionbudgets": CHILD,
    "rbac.authorization.k8s.io/rolebindings": CHILD,
    "rbac.authorization.k8s.io/clusterroles=plumage-router": {"bind"},
    "/pods": {"list", "patch", "watch"},
    "/secrets": {"create"},
    "/events": {"create", "list", "patch"},
}
SWITCHES = {
    "gatewayApi": "gateway.networking.k8s.io/httproutes",
    "inferenceExtension": "inference.networking.k8s.io/inferencepools",
    "ingress": "networking.k8s.io/ingresses",
    "podMonitors": "monitoring.coreos.com/podmonitors",
}
LEASE = {
    "coordination.k8s.io/leases": {"create"},
    "coordination.k8s.io/leases=plumage-operator": {"get", "update"},
}
ROUTER = {"discovery.k8s.io/endpointslices": {"list", "watch"}}


def test_rights_of_a_cluster_wide_operator(render: Any) -> None:
    rendered = render()
    assert _rights(rendered.one("ClusterRole", "plumage-operator")) == OPERATOR
    assert _rights(rendered.one("Role")) == LEASE
    assert _rights(rendered.one("ClusterRole", "plumage-router")) == ROUTER


@pytest.mark.parametrize("switch", SWITCHES)
def test_option_grants_its_kind_and_enables_it_in_the_operator(render: Any, switch: str) -> None:
    rendered = render({"integrations": {switch: True}})
    assert _rights(rendered.one("ClusterRole", "plumage-operator")) == {**OPERATOR, SWITCHES[switch]: CHILD}
    container = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "PLUMAGE_INTEGRATIONS", "value": switch} in container["env"]


def test_namespaced_operator_has_no_right_beyond_its_namespaces(render: Any) -> None:
    values = {"watchNamespaces": ["team-a", "team-b"], "rbac": {"routerRole": "team-router", "aggregate": False}}
    rendered = render(values)
    held = {**OPERATOR, "rbac.authorization.k8s.io/clusterroles=team-router": {"bind"}}
    del held["rbac.authorization.k8s.io/clusterroles=plumage-router"]
    roles = {(one["metadata"]["namespace"], one["metadata"]["name"]): _rights(one) for one in rendered.of("Role")}
    assert roles == {
        ("team-a", "plumage-operator"): held,
        ("team-b", "plumage-operator"): held,
        ("plumage-system", "plumage-operator-lease"): LEASE,
    }
    assert [one["metadata"]["name"] for one in rendered.of("ClusterRole")] == ["team-router"]
    assert rendered.of("ClusterRoleBinding") == []


def test_every_binding_joins_a_role_of_the_chart_and_an_account_of_the_release(render: Any) -> None:
    for values in ({}, {"watchNamespaces": ["team-a"]}, {"externalMetrics": {"enabled": True}}):
        rendered = render(values)
        roles = rendered.of("Role") + rendered.of("ClusterRole")
        names = {(one["kind"], one["metadata"]["name"]) for one in roles}
        names.add(("Role", "extension-apiserver-authentication-reader"))  # Kubernetes' own, in kube-system
        accounts = {("plumage-operator", "plumage-system"), ("horizontal-pod-autoscaler", "kube-system")}
        for one in rendered.of("RoleBinding") + rendered.of("ClusterRoleBinding"):
            assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in names
            assert {(subject["name"], subject["namespace"]) for subject in one["subjects"]} <= accounts


def test_users_get_rights_on_pools_by_aggregated_cluster_roles(render: Any) -> None:
    rendered = render()
    edit, view = (rendered.one("ClusterRole", f"plumage-{role}") for role in ("edit", "view"))
    assert {name for name in edit["metadata"]["labels"] if "aggregate" in name} == {
        "rbac.authorization.k8s.io/aggregate-to-edit",
        "rbac.authorization.k8s.io/aggregate-to-admin",
    }
    assert {name for name in view["metadata"]["labels"] if "aggregate" in name} == {
        "rbac.authorization.k8s.io/aggregate-to-view"
    }
    assert _rights(view)["inference.plumage.dev/inferencepools"] == {"get", "list", "watch"}
    assert "patch" in _rights(edit)["inference.plumage.dev/inferencepools/scale"]
    for one in (edit, view):  # only the operator writes the status
        assert _rights(one)["inference.plumage.dev/inferencepools/status"] == {"get"}


def test_no_role_reads_secrets_or_has_a_wildcard(render: Any, case: tuple[str, dict[str, Any]]) -> None:
    rendered = render({**case[1], "integrations": dict.fromkeys(SWITCHES, True)})
    for one in rendered.of("Role") + rendered.of("ClusterRole"):
        for kind, verbs in _rights(one).items():
            group, _, resource = kind.partition("/")
            assert "secrets" not in resource or (kind, verbs) == ("/secrets", {"create"})
            assert "*" not in verbs | {group}
            assert resource != "*" or group == "external.metrics.k8s.io"


def test_no_roles_or_bindings_without_rbac(render: Any) -> None:
    rendered = render({"rbac": {"create": False}, "externalMetrics": {"enabled": True}})
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & {one["kind"] for one in rendered.objects}


def test_admission_policy_covers_every_kind_that_the_operator_writes(render: Any) -> None:
    values = {"integrations": dict.fromkeys(SWITCHES, True)}
    rendered = render(values)
    policy = rendered.one("ValidatingAdmissionPolicy")
    bounded = {
        f"{group}/{resource}"
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    written = {
        kind
        for kind, verbs in _rights(rendered.one("ClusterRole", "plumage-operator")).items()
        if verbs & {"create", "update", "patch", "delete"}
    }
    free = {"/events", "inference.plumage.dev/inferencepools/status", "inference.plumage.dev/inferencegateways/status"}
    assert written - bounded == free
    (condition,) = policy["spec"]["matchConditions"]
    assert "'system:serviceaccount:plumage-system:plumage-operator'" in condition["expression"]
    binding = rendered.one("ValidatingAdmissionPolicyBinding")
    assert (binding["spec"]["policyName"], binding["spec"]["validationActions"]) == (
        policy["metadata"]["name"],
        ["Deny"],
    )


def test_admission_policy_applies_to_the_account_of_the_release(render: Any) -> None:
    named = {"operator": {"serviceAccount": {"create": False, "name": "theirs"}}}
    policy = render(named, namespace="elsewhere").one("ValidatingAdmissionPolicy")
    assert "'system:serviceaccount:elsewhere:theirs'" in policy["spec"]["matchConditions"][0]["expression"]
    assert not render({"rbac": {"admissionPolicy": False}}).of("ValidatingAdmissionPolicy")


def _rights(role: Mapping[str, Any]) -> dict[str, set[str]]:
    """Verbs by GROUP/RESOURCE, with =NAME where the rule names objects."""
    found: dict[str, set[str]] = {}
    for kind, verbs in _each(role["rules"]):
        found.setdefault(kind, set()).update(verbs)
    return found


def _each(rules: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Iterable[str]]]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    yield f"{group}/{resource}" + (f"={name}" if name else ""), rule["verbs"]
