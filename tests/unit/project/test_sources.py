"""Policies from elsewhere name their source, so that a reader can compare them."""

from __future__ import annotations

import importlib

import pytest

THEIRS = {
    "plumage_bench.baselines.routing.aibrix": "vllm-project/aibrix",
    "plumage_bench.baselines.routing.dynamo": "ai-dynamo/dynamo",
    "plumage_bench.baselines.routing.kubeai": "substratusai/kubeai",
    "plumage_bench.baselines.routing.llmd": "llm-d/llm-d-router",
    "plumage_bench.baselines.routing.production_stack": "production-stack#1035",
    "plumage_bench.baselines.routing.sglang": "KVRouting",
    "plumage.routing.load_policies": "Mitzenmacher",
    "plumage_bench.baselines.eviction.classic": "Belady",
    "plumage_bench.baselines.eviction.twoq": "2Q: A Low Overhead High Performance Buffer Management Replacement",
}


@pytest.mark.parametrize(("module", "source"), THEIRS.items())
def test_policy_from_elsewhere_names_its_source(module: str, source: str) -> None:
    documentation = importlib.import_module(module).__doc__ or ""
    assert source in " ".join(documentation.split())
