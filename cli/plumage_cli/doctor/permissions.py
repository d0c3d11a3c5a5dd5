"""Whether an operator has the permissions that its code lists. The API server answers (SubjectAccessReview)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plumage.api_server import ApiServerError
from plumage_cli.cluster.client import Cluster
from plumage_cli.cluster.operators import user_of
from plumage_cli.doctor.finding import Finding, Verdict
from plumage_operator.kinds import INTEGRATIONS
from plumage_operator.permissions import IN_POOLS, IN_SYSTEM, Rule

__all__ = ["check_permissions", "may"]

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
# doctor/integrations.py checks them where a pool asks for one.
_ON_REQUEST = tuple((one.group, one.plural) for one in INTEGRATIONS)
_SHOWN = 4


def check_permissions(
    cluster: Cluster, operator: Mapping[str, Any], namespaces: Sequence[str], role: str
) -> Iterator[Finding]:
    """operator: its Deployment. namespaces: those that it watches, empty for all. role: the ClusterRole of routers."""
    home, user = operator["metadata"]["namespace"], user_of(operator)
    try:
        places = namespaces or [""]
        missing = [one for place in places for one in _missing(cluster, user, IN_POOLS, place, role)]
        missing += _missing(cluster, user, IN_SYSTEM, home, role)
    except ApiServerError as error:
        yield Finding(
            Verdict.WARNING, f"can't check the permissions of {user}: {error}", "run this as a cluster administrator"
        )
        return
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        what = f"{user} may not {', '.join(missing[:_SHOWN])}{more}"
        yield Finding(Verdict.BAD, what, "helm upgrade with rbac.create=true, or add what is missing to its role")
    else:
        yield Finding(Verdict.GOOD, f"{user} has all permissions that the operator needs")


def may(cluster: Cluster, user: str, group: str, resource: str, verb: str, namespace: str) -> bool:
    """Whether `user` may do `verb` on `resource` in `namespace`."""
    return _allowed(cluster, user, _asked(group, resource, verb, namespace))


def _missing(cluster: Cluster, user: str, rules: Sequence[Rule], namespace: str, role: str) -> list[str]:
    """The missing permissions of `user`, as text. Only a rule's first verb is checked: a role has all verbs or none."""
    found = []
    for rule in rules:
        for resource in rule.resources:
            if (rule.group, resource) in _ON_REQUEST:
                continue
            names = (role,) if resource == "clusterroles" else rule.names or ("",)
            asked = _asked(rule.group, resource, rule.verbs[0], "" if resource == "clusterroles" else namespace)
            if not all(_allowed(cluster, user, {**asked, **({"name": name} if name else {})}) for name in names):
                found.append(f"{rule.verbs[0]} {resource}" + (f" in {namespace}" if namespace else ""))
    return found


def _asked(group: str, resource: str, verb: str, namespace: str) -> dict[str, str]:
    kind, _, part = resource.partition("/")
    asked = {"group": group, "resource": kind, "verb": verb}
    return asked | ({"subresource": part} if part else {}) | ({"namespace": namespace} if namespace else {})


def _allowed(cluster: Cluster, user: str, asked: Mapping[str, str]) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:serviceaccounts"], "resourceAttributes": asked},
    }
    return bool(cluster.post(_REVIEWS, review)["status"].get("allowed"))
