"""An operator that is restricted to namespaces, with exactly the Roles that the chart makes for it there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.charts import CHART, Rendered
from support.needs import module
from support.operator_fleet import Fleet, children, made, pool

INSTALLED = "plumage-held"
ROLES = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "Lease")


@pytest.fixture
def held(fleet: Fleet, namespace: str) -> Iterator[str]:
    """The operator's name. No other operator runs."""
    helm = module("helm_python")
    values = {"watchNamespaces": [namespace], "rbac": {"aggregate": False}, "crds": {"enabled": False}}
    with helm.Chart.load(CHART) as chart:
        rendered = Rendered(chart.render(values, name="plumage", namespace=INSTALLED))
    rights: list[dict[str, Any]] = [one for one in rendered.objects if one["kind"] in ROLES]
    assert "ClusterRoleBinding" not in {one["kind"] for one in rendered.objects}
    (account,) = (one["metadata"]["name"] for one in rights if one["kind"] == "ServiceAccount")
    fleet.kubectl("create", "namespace", INSTALLED)
    fleet.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(rights))
    for name in list(fleet.operators):
        fleet.stop(name)
    kubeconfig = fleet.kubeconfig(INSTALLED, account)
    variables = {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": INSTALLED, "PLUMAGE_INTEGRATIONS": ""}
    fleet.start("held", PLUMAGE_WATCH_NAMESPACES=namespace, **variables)
    yield f"--kubeconfig={kubeconfig}"
    fleet.stop("held", kill=True)
    fleet.kubectl("delete", "namespace", INSTALLED, "--wait=false")
    fleet.start()


def test_namespaced_operator_serves_only_its_namespace(fleet: Fleet, namespace: str, held: str) -> None:
    for where in ("default", namespace):
        fleet.kubectl("-n", where, "apply", "-f", "-", stdin=pool("  replicas: 1"))
    try:
        assert len(made(fleet, namespace)) == 17
        fleet.kubectl("-n", namespace, "delete", "service", "chat-router")
        fleet.until(lambda: ("Service", "chat-router") in children(fleet, namespace))  # it watches there, too
        assert children(fleet, "default") == {}
        for asked in (("get", "ppool"), ("create", "configmap", "theirs"), ("delete", "deployment", "theirs")):
            assert "is forbidden" in fleet.kubectl(held, "-n", "default", *asked, check=False)
        assert "is forbidden" in fleet.kubectl(held, "get", "ppool", "-A", check=False)
        assert "orbidden" not in fleet.log("held")
    finally:
        fleet.kubectl("-n", "default", "delete", "ppool", "chat", "--wait=false")
