"""`plumage bench defaults`: mistakes are 0, each check finds a planted one, and named differences count as drift."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from pydantic import Field

from plumage.api.v1alpha1 import InferencePoolSpec
from plumage.settings.engine_policies import FeatherConfig
from plumage.settings.plugin_config import PluginSettings
from plumage.settings.vllm import plugin_settings
from plumage_bench.benches.defaults.copies import differing, second_copies
from plumage_bench.benches.defaults.drift import (
    MEASURED,
    WITHOUT,
    Made,
    differences,
    drift,
    named,
    overrides,
    unnamed,
)
from plumage_bench.benches.defaults.leaves import leaves
from plumage_bench.benches.defaults.reading import NOT_SET, unread, unread_of_pool
from plumage_bench.benches.defaults.reasons import REASONS
from plumage_bench.ours import Ours
from plumage_bench.registry import BENCHMARKS


@pytest.mark.parametrize("name", MEASURED)
def test_ours_of_a_benchmark_is_what_its_manifest_deploys(name: str) -> None:
    assert list(differences(MEASURED[name]())) == []


def test_setting_that_a_benchmark_does_not_name_is_drift() -> None:
    ours = Ours({"engine.feather.policy": "Bandit"}, "VLLM")
    settings = ours.plugin()
    settings["feather"]["options"]["exploration"] = 0.02
    assert list(differences(iter([Made("plugin", settings, ours.plugin())]))) != []


def test_setting_that_a_benchmark_leaves_out_is_drift() -> None:
    settings = Ours(runtime="VLLM").plugin()
    del settings["feather"]["orderBatch"]
    assert list(differences(iter([Made("plugin", settings, Ours(runtime="VLLM").plugin())]))) != []


def test_named_difference_is_drift_too() -> None:
    """Until 2026-11-29 `drift` left out what an experiment names, though its target says all settings."""
    lines = drift()
    assert "fidelity: engine.batchLimit = Static" in lines
    assert "vllm-hostmem: engine.feather.policy = Fcfs" in lines
    assert len(lines) == len(named())


def test_each_override_has_a_reason_and_no_reason_is_left_over() -> None:
    assert unnamed() == []
    assert {name for name, of in REASONS.items() if of} == {one.benchmark for one in named()}


def test_override_without_a_reason_is_unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module(drift.__module__), "REASONS", {**REASONS, "fidelity": {}})
    assert unnamed() == ["fidelity: engine.batchLimit has no reason"]
    assert len(drift()) == len(named()), "it counts once"


def test_each_benchmark_declares_ours_or_declares_none() -> None:
    assert set(MEASURED) | set(WITHOUT) == set(BENCHMARKS)
    assert not set(MEASURED) & set(WITHOUT)


def test_overrides_list_what_differs_from_the_default_manifest() -> None:
    assert overrides("vllm-pressure") == {"engine.eviction.policy": "Lru", "engine.feather.policy": "Fcfs"}
    assert not overrides("vllm-feather"), "all its contenders have the default manifest's engine"
    assert overrides("cht") == {}
    assert "engine.eviction.policy" not in overrides("gsp"), "Hotness is the default"


@pytest.mark.timeout(600)  # it makes all objects of some 500 manifests, 25 s of CPU
def test_every_field_of_both_kinds_is_read() -> None:
    assert unread() == []


class _WithSlo(InferencePoolSpec):
    slo: int = Field(5, description="Read by nobody.")


def test_field_without_reader_is_found() -> None:
    def makes(spec: dict[str, Any]) -> Any:
        return {name: value for name, value in spec.items() if name != "slo"}

    assert "slo" in dict(leaves(_WithSlo))
    assert unread_of_pool(_WithSlo, makes) == [f"InferencePool spec.slo {NOT_SET}"]


def test_no_process_has_another_default_than_the_manifest() -> None:
    assert second_copies() == []


class _Sorting(FeatherConfig):
    order_batch: bool = True


class _Other(PluginSettings):
    feather: _Sorting | None = _Sorting()


def test_second_default_is_found() -> None:
    settings = plugin_settings(Ours(runtime="VLLM").pool(), "/token", 0).written()
    assert differing(PluginSettings, settings, {"routes.adminTokenFile"}) == []
    assert differing(_Other, settings, {"routes.adminTokenFile"}) == ["feather.orderBatch"]
