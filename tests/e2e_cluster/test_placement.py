"""The nodes of a pool's pods: by default replicas are spread over nodes, and every part runs where its fields
require."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from cluster import lifecycle
from support.kube_access import Access, until
from support.kube_install import ROOT, Pool, apply_pool, remove_pool

LABEL = "plumage-test/part"
PARTS = ("engine", "router", "directory")


@pytest.fixture
def spread(access: Access, own: lifecycle.Cluster, installed: None) -> Iterator[Pool]:
    """Two engines and two routers, on a cluster of two nodes."""
    manifest = yaml.safe_load((ROOT / "examples" / "minimal.yaml").read_text())
    manifest["spec"]["replicas"] = 2
    made = apply_pool(access, "spread", manifest["metadata"]["name"], json.dumps(manifest))
    yield made
    remove_pool(access, made)


def test_replicas_spread_and_node_selector_places_components(access: Access, spread: Pool) -> None:
    until(lambda: len(nodes(access, spread, "engine")) == 2, "engines stand on both nodes")
    until(lambda: len(nodes(access, spread, "router")) == 2, "routers stand on both nodes")
    access.kubectl("label", "node", "node-1", f"{LABEL}=here", "--overwrite")
    try:
        here = {"nodeSelector": {LABEL: "here"}}
        spec = {"engine": here, "router": here, "directory": {"managed": here}}
        access.api.patch("inferencepools", spread.name, spread.namespace, {"spec": spec})
        for part in PARTS:
            until(
                lambda part=part: nodes(access, spread, part) == {"node-1"},
                f"{part} runs where the pool's fields require",
            )
    finally:
        access.kubectl("label", "node", "node-1", f"{LABEL}-")


def nodes(access: Access, pool: Pool, part: str) -> set[str]:
    """The nodes of the part's pods, including draining ones."""
    chosen = f"inference.plumage.dev/pool={pool.name},app.kubernetes.io/component={part}"
    return {str(one["spec"].get("nodeName")) for one in access.api.listed("pods", pool.namespace, chosen)}
