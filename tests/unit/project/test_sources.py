"""Policies that are not ours tell where they come from, so that a reader can hold the source beside them."""

from __future__ import annotations

import importlib

import pytest

THEIRS = {
    "routing.aibrix": "vllm-project/aibrix",
    "routing.dynamo": "ai-dynamo/dynamo",
    "routing.kubeai": "substratusai/kubeai",
    "routing.llmd": "llm-d/llm-d-router",
    "routing.production_stack": "production-stack#1035",
    "routing.sglang": "KVRouting",
    "routing.simple": "Mitzenmacher",
    "eviction.classic": "Belady",
    "eviction.twoq": "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm, VLDB 1994",
}


@pytest.mark.parametrize(("module", "source"), THEIRS.items())
def test_a_policy_that_is_not_ours_names_its_source(module: str, source: str) -> None:
    told = importlib.import_module(f"plumage.{module}").__doc__ or ""
    assert source in " ".join(told.split())
