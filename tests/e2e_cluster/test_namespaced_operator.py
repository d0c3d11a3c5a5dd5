"""`watchNamespaces` in a cluster: the operator works with Roles of its namespaces, and only there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from support.kube_access import Access, until
from support.kube_install import (
    OPERATOR_NAMESPACE,
    ROOT,
    Pool,
    apply_pool,
    children,
    remove_pool,
    revision,
    rollback,
    upgrade,
)

HELD, OTHER = "held", "other"
ACCOUNT = f"--as=system:serviceaccount:{OPERATOR_NAMESPACE}:plumage-operator"
_LEAST = yaml.safe_load((ROOT / "examples" / "minimal.yaml").read_text())
MANIFEST = json.dumps({**_LEAST, "spec": {**_LEAST["spec"], "router": {"replicas": 1}}})
NAME = str(_LEAST["metadata"]["name"])


@pytest.fixture
def held(access: Access, pool: Pool) -> Iterator[str]:
    """The release is restricted to one namespace until a rollback."""
    access.namespace(HELD)
    access.namespace(OTHER)
    installed = revision(access)
    upgrade(access, "--set", f"watchNamespaces={{{HELD}}}")
    yield installed
    rollback(access, installed)
    for namespace in (HELD, OTHER):
        remove_pool(access, Pool(NAME, namespace, 0.0))


def test_namespaced_operator_serves_only_its_namespace(access: Access, pool: Pool, held: str) -> None:
    assert not may(access, "list", "inferencepools.inference.plumage.dev", OTHER)
    assert not may(access, "create", "deployments.apps", "kube-system")
    access.kubectl("-n", OTHER, "apply", "-f", "-", stdin=MANIFEST)
    apply_pool(access, HELD, NAME, MANIFEST)  # Ready with Roles only
    elsewhere = Pool(NAME, OTHER, 0.0)
    assert children(access, elsewhere) == []
    assert "status" not in access.api.get("inferencepools", NAME, OTHER)
    log = access.kubectl("-n", OPERATOR_NAMESPACE, "logs", "deployment/plumage-operator")
    assert f"active: watching {HELD}" in log
    assert "forbidden" not in log.lower()
    assert children(access, pool), "pools of other namespaces serve on without an operator"

    rollback(access, held)
    ready = ("wait", "--for=condition=Ready", f"inferencepool/{NAME}", "--timeout=300s")
    access.kubectl("-n", OTHER, *ready)
    until(lambda: bool(children(access, elsewhere)), "with the rights of the cluster it is served")


def may(access: Access, verb: str, resource: str, namespace: str) -> bool:
    answer = access.kubectl("auth", "can-i", verb, resource, "-n", namespace, ACCOUNT, check=False)
    return answer.strip() == "yes"
