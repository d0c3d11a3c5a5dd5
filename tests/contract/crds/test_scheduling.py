"""Affinity and topology spread constraints have all fields of Kubernetes, and the operator copies them unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.crds import Kinds
from support.manifest_mistakes import pool, put

from plumage.api.v1alpha1 import parse_pool
from plumage.api.v1alpha1.scheduling import Affinity, TopologySpreadConstraint, as_written
from plumage.api.v1alpha1.struct import Struct

REQUIRED, PREFERRED = (f"{prefix}DuringSchedulingIgnoredDuringExecution" for prefix in ("required", "preferred"))
LABELS: dict[str, Any] = {
    "matchLabels": {"app.kubernetes.io/component": "engine"},
    "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["batch", ""]}],
}
NODES: dict[str, Any] = {
    "matchExpressions": [{"key": "gpus", "operator": "Gt", "values": ["3"]}, {"key": "gpu", "operator": "Exists"}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}],
}
PODS: dict[str, Any] = {
    "topologyKey": "topology.kubernetes.io/zone",
    "labelSelector": LABELS,
    "namespaces": ["chat"],
    "namespaceSelector": {},
    "matchLabelKeys": ["pod-template-hash"],
    "mismatchLabelKeys": ["tenant"],
}
NEAR = {REQUIRED: [PODS], PREFERRED: [{"weight": 100, "podAffinityTerm": PODS}]}
AFFINITY: dict[str, Any] = {
    "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODES]}, PREFERRED: [{"weight": 1, "preference": NODES}]},
    "podAffinity": NEAR,
    "podAntiAffinity": NEAR,
}
EMPTY: dict[str, Any] = {
    "nodeAffinity": {},
    "podAffinity": {REQUIRED: []},
    "podAntiAffinity": {
        REQUIRED: [{"topologyKey": "zone", "namespaces": [], "labelSelector": {"matchLabels": {}}}],
        PREFERRED: [],
    },
}
SPREAD: dict[str, Any] = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": LABELS,
    "minDomains": 3,
    "nodeAffinityPolicy": "Ignore",
    "nodeTaintsPolicy": "Honor",
    "matchLabelKeys": ["pod-template-hash"],
}


def paths(schema: Mapping[str, Any], known: Mapping[str, Any], way: str = "") -> Iterator[str]:
    """Every field below a schema. `known` has the schemas of its references."""
    for part in (schema, *schema.get("allOf", ())):
        if "$ref" in part:
            yield from paths(known[part["$ref"].rpartition("/")[2]], known, way)
    for name, field in schema.get("properties", {}).items():
        yield f"{way}.{name}"
        yield from paths(field, known, f"{way}.{name}")
    if "items" in schema:
        yield from paths(schema["items"], known, f"{way}[]")


@pytest.fixture(scope="module")
def kubernetes(kinds: Kinds) -> dict[str, Any]:
    """The schemas of the server's own kinds."""
    found: dict[str, Any] = json.loads(kinds.kubectl("get", "--raw", "/openapi/v3/api/v1").stdout)
    return dict(found["components"]["schemas"])


@pytest.mark.parametrize("model", [Affinity, TopologySpreadConstraint], ids=lambda model: model.__name__)
def test_fields_equal_those_of_kubernetes(kubernetes: dict[str, Any], model: type[Struct]) -> None:
    whole = model.model_json_schema()
    known = {name: present(schema) for name, schema in whole["$defs"].items()}
    theirs = set(paths(kubernetes[f"io.k8s.api.core.v1.{model.__name__}"], kubernetes))
    assert set(paths(present(whole), known)) == theirs


def present(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The type without None, for a field that may be absent."""
    fields = schema.get("properties", {})
    return {"properties": {name: field.get("anyOf", [field])[0] for name, field in fields.items()}}


def test_scheduling_fields_are_stored_and_copied_unchanged(kinds: Kinds) -> None:
    document = pool()
    put("spec.engine.affinity", AFFINITY)(document)
    put("spec.engine.topologySpreadConstraints", [SPREAD])(document)
    verdict = kinds.judge(document)
    assert verdict.accepted, verdict.body
    kept = verdict.body["spec"]["engine"]
    assert (kept["affinity"], kept["topologySpreadConstraints"]) == (AFFINITY, [SPREAD])
    engine = parse_pool(verdict.body, "kept").spec.engine
    assert engine.affinity is not None
    assert as_written(engine.affinity) == AFFINITY
    assert [as_written(one) for one in engine.topology_spread_constraints] == [SPREAD]


@pytest.mark.parametrize("affinity", [AFFINITY, EMPTY], ids=["whole", "empty"])
def test_pod_keeps_the_copied_fields(kinds: Kinds, affinity: dict[str, Any]) -> None:
    """Otherwise the operator would repair the pod for ever."""
    handed_on = as_written(Affinity.model_validate(affinity))
    inside = {"containers": [{"name": "a", "image": "a"}], "affinity": handed_on, "topologySpreadConstraints": [SPREAD]}
    whole = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": inside})
    made = kinds.kubectl("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", stdin=whole)
    kept = json.loads(made.stdout)["spec"]
    assert (kept["affinity"], kept["topologySpreadConstraints"]) == (handed_on, [SPREAD])
