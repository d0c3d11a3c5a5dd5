"""The manifests under examples/ are valid without changes, and a user can run or apply each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.operator_world import CONFIG

from plumage.api.v1alpha1 import InferencePool, load_manifests
from plumage.settings.effect import without_effect
from plumage_operator.observed import external_of
from plumage_operator.resources import PoolContext, build_children
from plumage_operator.resources.context import external_mistake

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
AUTOSCALED = EXAMPLES[0].parent / "autoscaling" / "pool.yaml"  # the folder also has kinds of other projects
PICKED = EXAMPLES[0].parent / "endpoint-picker" / "pool.yaml"


@pytest.mark.parametrize("path", [*EXAMPLES, AUTOSCALED, PICKED], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_example_is_a_valid_manifest(path: Path) -> None:
    assert load_manifests(path.read_text(), path.name)


def test_examples_page_says_which_run_and_how() -> None:
    page = (EXAMPLES[0].parent / "README.md").read_text()
    rows = re.findall(r"^\| \[(.+?\.yaml)\]\(.+?\) \| .+? \| (.+?) \|$", page, re.M)
    assert sorted(name for name, _ in rows) == [path.name for path in EXAMPLES]
    for name, run in rows:
        manifests = load_manifests((EXAMPLES[0].parent / name).read_text(), name)
        runs = len(manifests) == 1 and isinstance(manifests[0], InferencePool)
        assert (run == f"`plumage up examples/{name}`") is runs


def test_local_example_equals_the_readme() -> None:
    path = next(path for path in EXAMPLES if path.name == "local.yaml")
    (pool,) = load_manifests(path.read_text(), path.name)
    assert isinstance(pool, InferencePool)
    assert pool.spec.replicas == 4
    assert pool.spec.model.uri == "builtin://tiny-chat"
    assert (pool.spec.router.policy, pool.spec.engine.eviction.policy) == ("Lbgr", "Hotness")


def test_manifest_in_the_readme_is_a_shortened_example() -> None:
    text = (EXAMPLES[0].parents[1] / "README.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    (pool,) = load_manifests(shown, "README.md")
    (example,) = load_manifests((EXAMPLES[0].parent / "local.yaml").read_text(), "local.yaml")
    assert isinstance(pool, InferencePool)
    assert isinstance(example, InferencePool)
    assert (pool.metadata, pool.spec.model) == (example.metadata, example.spec.model)
    assert pool.spec.engine.eviction == example.spec.engine.eviction
    assert pool.spec.router == example.spec.router


def test_baseline_example_differs_in_policies_only() -> None:
    ours, baseline = (
        load_manifests((EXAMPLES[0].parent / name).read_text(), name)[0]
        for name in ("local.yaml", "round-robin-lru.yaml")
    )
    assert isinstance(ours, InferencePool)
    assert isinstance(baseline, InferencePool)
    assert ours.spec.engine.simulator == baseline.spec.engine.simulator
    assert ours.spec.initial_replicas == baseline.spec.initial_replicas
    assert ours.metadata == baseline.metadata


def test_gateway_api_example_leads_to_the_published_pool() -> None:
    written, route = yaml.safe_load_all(PICKED.with_name("gateway-api.yaml").read_text())
    (pool,) = load_manifests(yaml.safe_dump(written), "gateway-api.yaml")
    assert isinstance(pool, InferencePool)
    assert without_effect(pool) == ()
    made = build_children(PoolContext(pool, CONFIG, pool.spec.initial_replicas))
    (published,) = [one for one in made if one["kind"] == "InferencePool"]
    ((backend,),) = [rule["backendRefs"] for rule in route["spec"]["rules"]]
    assert backend == {
        "group": published["apiVersion"].partition("/")[0],
        "kind": published["kind"],
        "name": published["metadata"]["name"],
    }


def test_example_with_external_engines_leads_both_ways() -> None:
    theirs, written = yaml.safe_load_all(PICKED.with_name("external.yaml").read_text())
    (pool,) = load_manifests(yaml.safe_dump(written), "external.yaml")
    assert isinstance(pool, InferencePool)
    assert without_effect(pool) == ()
    assert external_of(written) == theirs["metadata"]["name"]
    assert external_mistake(theirs) is None
    made = build_children(PoolContext(pool, CONFIG, 0))
    reference = theirs["spec"]["endpointPickerRef"]
    (service,) = [one for one in made if (one["kind"], one["metadata"]["name"]) == ("Service", reference["name"])]
    assert reference["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]


@pytest.mark.parametrize(("name", "gpus"), [("gpu.yaml", "2"), ("vllm-cpu.yaml", None), ("vllm.yaml", "1")])
def test_vllm_example_requests_gpus(name: str, gpus: str | None) -> None:
    (pool,) = load_manifests((EXAMPLES[0].parent / name).read_text(), name)
    assert isinstance(pool, InferencePool)
    made = build_children(PoolContext(pool, CONFIG, pool.spec.initial_replicas))
    deployment = next(
        one
        for one in made
        if one["metadata"]["name"] == f"{pool.metadata.name}-engine" and "strategy" in one.get("spec", {})
    )
    pod = deployment["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    assert engine["resources"].get("limits", {}).get("nvidia.com/gpu") == gpus
    assert [one["key"] for one in pod.get("tolerations", [])] == (["nvidia.com/gpu"] if name == "gpu.yaml" else [])
    assert bool(pod.get("nodeSelector")) is (name == "gpu.yaml")
