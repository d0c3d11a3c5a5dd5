"""Each process uses each of its settings; a setting that it ignores is found."""

from __future__ import annotations

import pytest
from pydantic import field_validator

from plumage.settings.agent_config import AgentConfig
from plumage.settings.engine_policies import HostTierConfig
from plumage.settings.plugin_config import PluginSettings
from plumage.settings.router_config import LimitsConfig, RouterConfig
from plumage.settings.simulator_config import SimulatorConfig
from plumage.version_skew import Settings
from plumage_bench.benches.defaults import process_fields, reading
from plumage_bench.benches.defaults.process_fields import PACKAGES, unread_of_process, unread_of_processes


def test_every_setting_of_every_process_is_used() -> None:
    assert unread_of_processes() == []


class _PlantedRouter(RouterConfig):
    ignored_by_everything: int = 3


class _PlantedAgent(AgentConfig):
    ignored_by_everything: int = 3


class _PlantedSimulator(SimulatorConfig):
    ignored_by_everything: int = 3


class _PlantedPlugin(PluginSettings):
    ignored_by_everything: int = 3


@pytest.mark.parametrize("planted", [_PlantedRouter, _PlantedAgent, _PlantedSimulator, _PlantedPlugin])
def test_planted_setting_is_found_in_each_process(planted: type[Settings]) -> None:
    (package,) = (package for model, package in PACKAGES.items() if issubclass(planted, model))
    assert unread_of_process(planted, package) == [f"{planted.__name__} ignored_by_everything"]


class _Limits(LimitsConfig):
    ignored_by_everything: int = 3


class _Checked(RouterConfig):
    """A check is no use."""

    limits: _Limits = _Limits()
    checked_only: int = 3

    @field_validator("checked_only")
    @classmethod
    def _positive(cls, value: int) -> int:
        return value


def test_planted_setting_of_a_section_is_found() -> None:
    found = ["_Checked limits.ignored_by_everything", "_Checked checked_only"]
    assert unread_of_process(_Checked, "plumage_router") == found


class _Tier(HostTierConfig):
    ignored_by_everything: int = 3


class _Simulator(SimulatorConfig):
    host_tier: _Tier = _Tier()


class _Plugin(PluginSettings):
    host_tier: _Tier = _Tier()


@pytest.mark.parametrize(("model", "package"), [(_Simulator, "simulator"), (_Plugin, "vllm")])
def test_model_that_is_passed_on_whole_hides_no_setting(model: type[Settings], package: str) -> None:
    found = set(unread_of_process(model, f"plumage_engine.{package}"))
    assert f"{model.__name__} host_tier.ignored_by_everything" in found


def test_list_of_fields_that_a_process_leaves_out_has_no_used_one() -> None:
    for (package, _), names in process_fields.ELSEWHERE.items():
        assert not process_fields._loaded_in(package) & set(names)


def test_benchmark_counts_ignored_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "unread_of_pool", list)
    monkeypatch.setattr(reading, "unread_of_gateway", list)
    monkeypatch.setattr(process_fields, "PACKAGES", {_Checked: "plumage_router"})
    assert reading.unread() == ["_Checked limits.ignored_by_everything", "_Checked checked_only"]
