"""The kinds on a real API server, as a user meets them: defaults, explanations, columns, scaling, hostile values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.crds import CRDS, Kinds
from support.manifest_mistakes import SPREAD, gateway, pool, put

from plumage.api.v1alpha1 import (
    API_VERSION,
    InferenceGateway,
    InferencePool,
    load_pool,
    parse_manifest,
    parse_pool,
)
from plumage.errors import ManifestError

MINIMAL = CRDS.parent / "examples" / "minimal.yaml"
EXAMPLES = sorted((CRDS.parent / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_accepted(kinds: Kinds, path: Path) -> None:
    ours = ("InferencePool", "InferenceGateway")
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] in ours:
            verdict = kinds.judge({**document, "metadata": {**document["metadata"], "namespace": kinds.namespace}})
            assert verdict.accepted, verdict.body


def test_server_defaults_equal_model_defaults(kinds: Kinds) -> None:
    """The server's filled-in object and the models' defaults mean the same."""
    written = {**pool(), "spec": {"model": {"uri": "hf://Qwen/Qwen3-8B"}}}
    kept = kinds.judge(written).body
    assert kept["spec"]["engine"]["eviction"]["hotness"]["priority"] == "frequency + clock / length"
    assert kept["spec"]["rollout"] == {"maxSurge": 1, "maxUnavailable": 0, "drainTimeoutSeconds": 120}
    assert parse_pool(kept, "kept").spec == parse_pool(written, "written").spec
    assert parse_manifest(kinds.judge(gateway()).body, "kept").spec == parse_manifest(gateway(), "written").spec
    scaled = {**pool(), "spec": {**pool()["spec"], "autoscaling": {"maxReplicas": 3}}}
    behavior = kinds.judge(scaled).body["spec"]["autoscaling"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert behavior["scaleUp"]["policies"][0] == {"type": "Pods", "value": 4, "periodSeconds": 60}


def test_optional_sections_are_never_filled_in(kinds: Kinds) -> None:
    kept = kinds.judge(pool()).body["spec"]
    assert kept["router"] == {}
    assert "managed" not in kept["directory"]
    assert "simulator" not in kept["engine"]


@pytest.mark.parametrize(
    ("path", "phrases"),
    [
        ("ppool", "A pool of engines for one model"),
        ("ppool.spec.engine", "The engine of each replica"),
        ("ppool.spec.engine.feather.policy", "Which policy decides when a batch is closed"),
        ("ppool.spec.router.policy", "Lbgr when absent."),
        ("ppool.spec.autoscaling.metrics", "Metrics. The one that asks for the most replicas counts."),
        ("ppool.status.conditions", "Ready, and the conditions that it depends on."),
        ("pgw.spec.models", "Models, and the pools that serve them."),
    ],
)
def test_explain_describes_the_fields(kinds: Kinds, path: str, phrases: str) -> None:
    explained = " ".join(kinds.kubectl("explain", path).stdout.split())
    assert any(phrase in explained for phrase in phrases.split("|")), explained
    assert "<no description>" not in explained


def test_every_field_has_a_description_and_a_bound() -> None:
    for path in CRDS.glob("*.yaml"):
        schema = yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for way, node in fields(schema):
            if way == ".metadata":
                continue
            assert "$ref" not in node
            assert node.get("description") or "[]" in way, way
            assert is_bounded(node), way
            assert "anyOf" not in node or node.get("x-kubernetes-int-or-string"), way


def fields(node: dict[str, Any], way: str = "") -> list[tuple[str, dict[str, Any]]]:
    below = [(f"{way}.{name}", held) for name, held in node.get("properties", {}).items()]
    below += [(f"{way}[]", node["items"])] if "items" in node else []
    below += [(f"{way}[]", node["additionalProperties"])] if isinstance(node.get("additionalProperties"), dict) else []
    return [found for name, held in below for found in [(name, held), *fields(held, name)]]


def is_bounded(node: dict[str, Any]) -> bool:
    match node.get("type"):
        case "string":
            return "maxLength" in node or "enum" in node or node["description"].startswith(("Group", "This kind"))
        case "integer":
            return {"minimum", "maximum"} <= set(node)
        case "array":
            return "maxItems" in node and "x-kubernetes-list-type" in node
        case "object":
            named, kept = "properties" in node, node.get("x-kubernetes-preserve-unknown-fields")
            return not kept and (named or ("maxProperties" in node and "additionalProperties" in node))
        case None:
            return "maxLength" in node
    return node["type"] == "boolean"


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTILE: list[tuple[str, Any]] = [
    ("spec.engine.args", ["x" * 200_000]),
    ("spec.engine.args", ["--a"] * 65),
    ("spec.engine.env", [{"name": "A", "value": "x" * 200_000}]),
    ("spec.engine.nodeSelector", {"k" * 318: "v"}),
    ("spec.engine.nodeSelector", {f"k{n}": "v" for n in range(65)}),
    ("spec.engine.affinity", {"nodeAffinity": {"x": "y" * 200_000}}),
    ("spec.engine.affinity", {"podAffinity": {REQUIRED: [{"topologyKey": "x" * 318}]}}),
    ("spec.engine.affinity", {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}] * 17}}),
    ("spec.engine.topologySpreadConstraints", [SPREAD] * 17),
    ("spec.engine.topologySpreadConstraints", [{**SPREAD, "labelSelector": {"matchLabels": {"a": "x" * 200_000}}}]),
    ("spec.engine.hostPath", "/etc"),
    ("spec.engine.securityContext", {"privileged": True}),
    ("spec.engine.resources", {"limits": {"cpu": "-1"}}),
    ("spec.engine.resources", {"limits": {"cpu": "1; rm -rf /"}}),
    ("spec.engine.hostMemory", {"capacity": "1" * 41}),
    ("spec.engine.image", ""),
    ("spec.model.name", "a\nb"),
    ("spec.model.uri", "hf://org/model\nx"),
    ("spec.model.uri", "hf://org/" + "m" * 2048),
    *(("spec.model.uri", f"hf://org/a{space}b") for space in "\x0b\x85\xa0\u2028\u3000"),
    ("spec.model.tokenizer", "builtin://tiny-chat?x"),
    ("spec.directory.redisRef", {"url": "redis://host\u3000:1"}),
    ("spec.directory.redisRef", {"url": "redis://host:6379\n"}),
    ("spec.replicas", 2**63),
    ("spec.replicas", "{{ .Values }}"),
    ("spec.rollout.maxSurge", "1e9%"),
    ("spec.router.service.port", 65_536),
    ("metadata.name", "x" * 254),
    ("metadata.name", "../../etc"),
    ("metadata.name", "-chat"),
]


@pytest.mark.parametrize(("path", "value"), HOSTILE, ids=[f"{path} {str(value)[:40]}" for path, value in HOSTILE])
def test_hostile_values_are_refused_by_server_and_parser(kinds: Kinds, path: str, value: Any) -> None:
    document = pool()
    put(path, value)(document)
    with pytest.raises(ManifestError):
        parse_manifest(document, "hostile")
    verdict = kinds.judge(document)
    assert verdict.code in (400, 422), verdict.body


@pytest.mark.parametrize(
    "spec",
    [
        "{model: {uri: no}}",
        "{model: {uri: 'hf://a/b'}, replicas: 1_000}",
        "{model: {uri: 'hf://a/b'}, replicas: 0o17}",
        "{model: {uri: 'hf://a/b'}, replicas: 017}",
        "{model: {uri: 'hf://a/b'}, replicas: !!str 3}",
        "{model: {uri: 'hf://a/b'}, replicas: ~}",
        "{model: {uri: 'hf://a/b', name: on}}",
        "{model: {uri: 'hf://a/b', revision: 1e3}}",
        "{model: {uri: 'hf://a/b', revision: 1.5e3}}",
        "{model: {uri: 'hf://a/b', revision: 12e4567}}",
        "{model: &a {uri: *a}}",
    ],
)
def test_ambiguous_yaml_means_the_same_to_server_and_parser(kinds: Kinds, spec: str) -> None:
    """Both refuse what kubectl makes of it, or both read the same."""
    text = f"apiVersion: {API_VERSION}\nkind: InferencePool\nmetadata: {{name: tricks}}\nspec: {spec}\n"
    done = kinds.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text, check=False)
    try:
        ours = load_pool(text, "tricks")
    except ManifestError:
        assert done.returncode != 0, done.stdout
        return
    assert done.returncode == 0, done.stderr
    assert parse_pool(json.loads(done.stdout), "kept").spec == ours.spec


def test_get_shows_the_columns(kinds: Kinds) -> None:
    named = {**pool(), "metadata": {"name": "shown"}}
    assert kinds.create(named).accepted
    condition = {
        "type": "Ready", "status": "False", "reason": "Starting", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    status = {
        "replicas": 3, "readyReplicas": 2, "desiredReplicas": 3, "hitRatioPercent": 87, "model": "Qwen3-8B",
        "selector": "inference.plumage.dev/pool=shown", "conditions": [condition],
    }  # fmt: skip
    assert kinds.patch("InferencePool", "shown", {"status": status}, part="status").accepted
    head, row = kinds.kubectl("get", "ppool", "shown").stdout.splitlines()
    assert head.split() == ["NAME", "READY", "REPLICAS", "HIT", "RATIO", "MODEL", "AGE"]
    assert row.split()[:5] == ["shown", "False", "2", "87", "Qwen3-8B"]
    wide = kinds.kubectl("get", "ppool", "shown", "-o", "wide").stdout
    assert "Starting" in wide
    assert "hf://Qwen/Qwen3-8B" in wide
    assert kinds.create(gateway()).accepted
    assert "inferencegateway.inference.plumage.dev/front" in kinds.kubectl("get", "plumage", "-o", "name").stdout
    assert kinds.kubectl("get", "pgw", "front").returncode == 0


def test_status_out_of_bounds_is_refused(kinds: Kinds) -> None:
    assert kinds.create({**pool(), "metadata": {"name": "limits"}}).accepted
    verdict = kinds.patch("InferencePool", "limits", {"status": {"hitRatioPercent": 101}}, part="status")
    assert verdict.causes[0][0] == "status.hitRatioPercent"
    spec = kinds.patch("InferencePool", "limits", {"status": {"replicas": 7}})
    assert "status" not in spec.body, "only a status update writes a status"


def test_scale_reads_and_writes_replicas(kinds: Kinds) -> None:
    assert kinds.create({**pool(), "metadata": {"name": "sized"}}).accepted
    status = {"replicas": 1, "selector": "inference.plumage.dev/pool=sized"}
    assert kinds.patch("InferencePool", "sized", {"status": status}, part="status").accepted
    kinds.kubectl("scale", "ppool", "sized", "--replicas=3")
    scale = kinds.get("InferencePool", "sized", "scale").body
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 1, "selector": "inference.plumage.dev/pool=sized"}
    assert kinds.get("InferencePool", "sized").body["spec"]["replicas"] == 3


def test_scale_is_refused_where_the_autoscaler_decides(kinds: Kinds) -> None:
    scaled = {**pool(), "metadata": {"name": "auto"}, "spec": {**pool()["spec"], "autoscaling": {"maxReplicas": 3}}}
    assert kinds.create(scaled).accepted
    done = kinds.kubectl("scale", "ppool", "auto", "--replicas=3", check=False)
    assert done.returncode != 0
    assert "must be absent, or 1, when autoscaling is set" in done.stderr


def test_scale_works_without_replicas_in_the_manifest(kinds: Kinds) -> None:
    """HPA and KEDA read the scale first. Applying the manifest again keeps their number."""
    minimal = {**yaml.safe_load(MINIMAL.read_text()), "metadata": {"name": "unsized"}}
    assert "replicas" not in minimal["spec"]
    for apply in (["apply"], ["apply", "--server-side", "--field-manager=gitops"]):
        kinds.kubectl(*apply, "-f", "-", stdin=json.dumps(minimal))
        assert kinds.get("InferencePool", "unsized", "scale").body["spec"] == {"replicas": 1}
        change = {"spec": {"replicas": 4}}
        assert kinds.patch("InferencePool", "unsized", change, part="scale").body["spec"] == {"replicas": 4}
        kinds.kubectl(*apply, "-f", "-", stdin=json.dumps(minimal))
        assert kinds.get("InferencePool", "unsized", "scale").body["spec"] == {"replicas": 4}
        kinds.kubectl("delete", "ppool", "unsized")


def test_default_replicas_have_no_field_manager(kinds: Kinds) -> None:
    """A later server-side apply that sets the number conflicts with nobody."""
    minimal = {**yaml.safe_load(MINIMAL.read_text()), "metadata": {"name": "later"}}
    kinds.kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin=json.dumps(minimal))
    sized = {**minimal, "spec": {**minimal["spec"], "replicas": 3}}
    kinds.kubectl("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=json.dumps(sized))
    assert kinds.get("InferencePool", "later", "scale").body["spec"] == {"replicas": 3}


def test_scale_reads_a_pool_with_autoscaling(kinds: Kinds) -> None:
    scaled = {**pool(), "metadata": {"name": "own"}, "spec": {**pool()["spec"], "autoscaling": {"maxReplicas": 3}}}
    assert kinds.create(scaled).accepted
    assert kinds.get("InferencePool", "own", "scale").body["spec"] == {"replicas": 1}
    read = parse_pool(kinds.get("InferencePool", "own").body, "kept")
    assert read.spec.initial_replicas == read.spec.autoscaling.min_replicas  # type: ignore[union-attr]


def test_server_side_apply_changes_only_its_list_entries(kinds: Kinds) -> None:
    def apply(manager: str, name: str, value: str) -> None:
        document = {**pool(), "metadata": {"name": "shared"}}
        document["spec"] = {"model": {"uri": "hf://a/b"}, "engine": {"env": [{"name": name, "value": value}]}}
        manifest = json.dumps(document)
        kinds.kubectl("apply", "--server-side", f"--field-manager={manager}", "-f", "-", stdin=manifest)

    apply("one", "A", "1")
    apply("two", "B", "2")
    held = kinds.get("InferencePool", "shared").body["spec"]["engine"]["env"]
    assert {one["name"]: one["value"] for one in held} == {"A": "1", "B": "2"}


def test_both_kinds_exist() -> None:
    kinds = {yaml.safe_load(path.read_text())["spec"]["names"]["kind"] for path in CRDS.glob("*.yaml")}
    assert kinds == {InferencePool.__name__, InferenceGateway.__name__}
