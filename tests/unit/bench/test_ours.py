"""The contender called ours is made of a manifest."""

from __future__ import annotations

import random

import pytest

from plumage.errors import ManifestError
from plumage.settings.plugin_config import PluginSettings
from plumage_bench.benches.defaults.state import state_of
from plumage_bench.ours import Ours


def test_ours_without_overrides_equals_the_plugin_defaults() -> None:
    settings = Ours(runtime="VLLM").plugin()
    assert settings["feather"].pop("options") == {"order": "TipLoss"}, "as the tree's own default is"
    assert PluginSettings.model_validate(settings) == PluginSettings()


def test_override_reaches_engine_plugin_and_router() -> None:
    assert Ours({"engine.simulator.cacheBlocks": 64}).engine().cache_blocks == 64
    plugin = Ours({"engine.feather.policy": "Bandit"}, "VLLM").plugin()
    assert plugin["feather"]["options"]["exploration"] == 0.05
    assert Ours({"router.lbgr.forgetting": "0.75"}).routing() == (
        "Lbgr",
        {"c_miss": 1.0, "forgetting": 0.75, "c_hit": 0.0, "considered": 64},
    )


def test_override_unknown_to_manifests_is_refused() -> None:
    with pytest.raises(ManifestError):
        Ours({"engine.feather.polcy": "Bandit"}).pool()


def test_router_of_vllm_bounds_no_prompt_by_a_simulated_cache() -> None:
    simulated, real = (Ours(runtime=runtime).router("", None, 0)["model"] for runtime in ("Simulator", "VLLM"))
    assert simulated["cacheTokens"] == 200_000
    assert "cacheTokens" not in real


def test_ours_lists_its_overrides() -> None:
    ours = Ours({"engine.simulator.maxNumSeqs": 256})
    assert ours.listed() == {"runtime": "Simulator", "overrides": {"engine.simulator.maxNumSeqs": 256}}


def test_state_distinguishes_other_settings() -> None:
    one, other = (Ours({"router.lbgr.forgetting": value}) for value in ("0.75", "0.992"))
    assert state_of(one.routing_policy(random.Random(1))) == state_of(one.routing_policy(random.Random(2)))
    assert state_of(one.routing_policy(random.Random(1))) != state_of(other.routing_policy(random.Random(1)))
