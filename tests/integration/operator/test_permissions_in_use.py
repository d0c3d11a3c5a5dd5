"""Runs after all other tests here: the operator's requests in these tests were all within its role."""

from __future__ import annotations

from functools import partial

from support.audit import Audit
from support.operator_fleet import USER, Fleet, made, pool


def test_no_request_of_these_tests_lacked_permission(fleet: Fleet, namespace: str, audit: Audit) -> None:
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool("  replicas: 1"))
    made(fleet, namespace)
    assert audit.allowed > 20
    own = partial(fleet.kubectl, f"--kubeconfig={fleet.kubeconfig()}")
    assert audit.lacking(own) == []

    asked = f"list /api/v1/namespaces/{namespace}/secrets?limit=500"
    assert "secrets is forbidden" in own("-n", namespace, "get", "secrets", check=False)
    assert asked in audit.forbidden, "it would have been seen"
    assert audit.lacking(own) == [asked], "a request that was refused only for a moment is not listed"
    fleet.kubectl("-n", namespace, "create", "role", "reader", "--verb=list", "--resource=secrets")
    fleet.kubectl("-n", namespace, "create", "rolebinding", "reader", "--role=reader", f"--user={USER}")
    fleet.until(lambda: audit.lacking(own) == [])
