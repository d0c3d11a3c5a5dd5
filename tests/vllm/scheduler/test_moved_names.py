"""A name that this vLLM lacks, or an installation that raises, only disables its feature: the engine starts, the
feature is off with its reason, and answers are vLLM's."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.offload_tier import chain
from tests.vllm.scheduler.without_name import report_without

from plumage.errors import ConfigurationError
from plumage_bench.vllm.engine import Engine, Prompt, plugin_arguments
from plumage_bench.vllm.pretend import PretendEngine, host_tier_arguments
from plumage_engine.vllm import plugin
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.feather import row_order
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.settings import ENVIRONMENT

_SORTED = {"feather": {"orderBatch": True}}
"""Sorting the batch is not a default."""
_HIDDEN = {
    "feather": "vllm.v1.core.sched.request_queue.RequestQueue",
    "eviction": "vllm.v1.core.kv_cache_utils.FreeKVCacheBlockQueue",
    "batchOrder": "vllm.v1.worker.gpu_input_batch.InputBatch",
    "routes": "vllm.distributed.kv_events.AllBlocksCleared",
    "hostTier": "vllm.v1.core.kv_cache_utils.to_event_extra_keys",
}
_INSTALLED = {
    "feather": "plumage_engine.vllm.feather.queue_adapter.FeatherQueue",
    "batchLimit": "plumage_engine.vllm.batch_limit.BatchLimit",
    "eviction": "plumage_engine.vllm.eviction.ordered_pool.make_policy",
    "batchOrder": "plumage_engine.vllm.compat.model_runner.problems",
    "routes": "plumage_engine.vllm.routes.engine_core.PoolHotness",
    "promotion": "plumage_engine.vllm.offload.promotion.connector_hooks.Promoter",
}
_CASES = [*((feature, feature == "hostTier") for feature in _HIDDEN), ("feather", True)]
_expected: dict[str, tuple[int, ...]] = {}


def prompts() -> list[Prompt]:
    rng = random.Random(5)
    shared = [tuple(rng.choices(range(256), k=96)) for _ in range(3)]
    made = enumerate(rng.choice(shared) + tuple(rng.choices(range(256), k=20)) for _ in range(12))
    return [Prompt(str(number), tokens, 12, number) for number, tokens in made]


def answers(engine: Engine) -> Mapping[str, tuple[int, ...]]:
    return {name: answer.tokens for name, answer in engine.serve(prompts()).answers.items()}


def expected(start_engine: Callable[..., Engine]) -> Mapping[str, tuple[int, ...]]:
    if not _expected:
        _expected.update(answers(start_engine()))
    return _expected


@pytest.mark.parametrize(("feature", "tier"), _CASES)
def test_missing_name_disables_feature(
    start_engine: Callable[..., Engine], tiny_model: Path, feature: str, tier: bool
) -> None:
    found = report_without(tiny_model, prompts(), _HIDDEN[feature], tier)
    assert found["answers"] == expected(start_engine)
    assert list(found["off"]) == [feature]
    assert _HIDDEN[feature].rpartition(".")[2] in found["off"][feature]
    assert found["held"] == 0
    if tier and feature != "hostTier":
        assert {"hostTier", "hotness", "promotion"} <= set(found["on"])


def test_disabled_promotion_is_not_reported_as_enabled(tiny_model: Path) -> None:
    plugin = plugin_arguments({"hostTier": {"promotion": "Off"}})
    engine = PretendEngine(tiny_model, blocks=24, **plugin, **host_tier_arguments(16))
    assert "promotion" not in engine.scheduler.plumage.guards
    assert engine.scheduler.plumage.guards["hostTier"].on
    serves_on(engine)


def test_unusable_host_tier_uses_vllm_spec_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_offload.cpu import spec as stock

    from plumage_engine.vllm.offload import spec
    from plumage_engine.vllm.offload.fallback import IdleSpec

    guard = Guard("hostTier", Counters())
    assert (spec.choose(guard).__name__, guard.on) == ("SelectiveSpec", True)
    for module in ("compat.kv_offload", "offload.selective_spec", "offload.host_tier.store_manager"):
        monkeypatch.delitem(sys.modules, f"plumage_engine.vllm.{module}")
    monkeypatch.delattr(kv_cache_utils, "to_event_extra_keys")
    assert spec.choose(guard) is IdleSpec
    monkeypatch.setattr(type(current_platform), "is_cuda_alike", lambda self: True)
    assert spec.choose(guard) is stock.CPUOffloadingSpec
    assert "to_event_extra_keys" in guard.reason
    monkeypatch.delattr(stock, "CPUOffloadingSpec")
    assert spec.choose(guard) is IdleSpec


@pytest.mark.parametrize("stock", [True, False])
def test_manager_with_other_signature_is_not_replaced(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, stock: bool
) -> None:
    """Plumage's manager can't be made, so vLLM's own is used. If that can't be made either, host memory stays empty."""
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

    from plumage_engine.vllm.offload import fallback
    from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager

    def moved(*given: Any, **named: Any) -> None:
        raise TypeError("takes no num_chunks")

    monkeypatch.setattr(fallback, "GUARD", Guard("hostTier", Counters()))
    monkeypatch.setattr(HostTierManager if stock else CPUOffloadingManager, "__init__", moved)
    engine = PretendEngine(tiny_model, blocks=24, **plugin_arguments(_SORTED), **host_tier_arguments(16))
    guard = engine.scheduler.plumage.guards["hostTier"]
    assert (guard.on, guard.reason) == (False, "TypeError: takes no num_chunks")
    manager = type(engine.scheduler.connector.connector_scheduler.manager).__name__
    assert manager == ("CPUOffloadingManager" if stock else "IdleManager")
    serves_on(engine)


def test_missing_tiers_disable_only_disk(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As before their first import.
    for package, module in (("offload.disk_tier", "setup"), ("compat", "kv_tiering")):
        monkeypatch.delitem(sys.modules, f"plumage_engine.vllm.{package}.{module}", raising=False)
        monkeypatch.delattr(f"plumage_engine.vllm.{package}.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "vllm.v1.kv_offload.tiering.manager", None)
    disk = {"disk_path": str(tmp_path), "disk_bytes_to_use": 1 << 24}
    engine = PretendEngine(tiny_model, blocks=24, **plugin_arguments(_SORTED), **host_tier_arguments(16, **disk))
    plumage = engine.scheduler.plumage
    assert {name for name, guard in plumage.guards.items() if not guard.on} == {"disk"}
    assert "tiering" in plumage.guards["disk"].reason
    serves_on(engine)


@pytest.mark.parametrize("feature", _INSTALLED)
def test_raising_installation_disables_feature(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """On a fake device, which raises if a request would read a wrong block."""

    def fail(*given: Any, **named: Any) -> Any:
        raise AttributeError("made to fail")

    monkeypatch.setattr(_INSTALLED[feature], fail)
    engine = PretendEngine(tiny_model, blocks=24, **plugin_arguments(_SORTED), **host_tier_arguments(16))
    plumage = engine.scheduler.plumage
    assert {name for name, guard in plumage.guards.items() if not guard.on} == {feature}
    assert plumage.guards[feature].reason == "AttributeError: made to fail"
    assert plumage.counters.get("failures", feature) == 1
    if feature != "routes":
        assert {"hostTier", "hotness", "promotion"} <= set(plumage.guards)
        assert engine.scheduler.routes.answer("promote", b'{"uses": {"1": 2}}') == (204, b"")
    serves_on(engine)


def serves_on(engine: PretendEngine) -> None:
    for number in range(20):
        engine.add(f"{number}", chain(number % 3, 4) + chain(100 + number, 1), 8)
        engine.step()
    engine.finish()
    assert all(request.is_finished() for request in engine.requests.values())
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


def test_unsortable_batch_disables_order(start_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected(start_engine)

    def fail(rows: Any) -> Any:
        raise RuntimeError("made to fail")

    monkeypatch.setattr(row_order, "rank_rows", fail)
    engine = start_engine(**plugin_arguments(_SORTED))
    assert engine.scheduler.plumage.guards["batchOrder"].on
    assert answers(engine) == wanted
    assert engine.scheduler.plumage.guards["batchOrder"].reason == "RuntimeError: made to fail"
    assert engine.scheduler.plumage.counters.get("failures", "batchOrder") == 1
    _, stats = engine.scheduler.routes.answer("stats", b"")
    assert json.loads(stats)["features"]["batchOrder"] == {"on": False, "reason": "RuntimeError: made to fail"}


def test_failing_entry_point_keeps_vllm(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from vllm.config import SchedulerConfig

    monkeypatch.setattr(plugin, "GUARD", Guard("scheduler", Counters()))
    monkeypatch.setenv(ENVIRONMENT, json.dumps(_SORTED))
    monkeypatch.delattr(SchedulerConfig, "get_scheduler_cls")
    monkeypatch.delitem(sys.modules, "plumage_engine.vllm.compat.worker", raising=False)
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.worker_base", None)
    plugin.register()
    assert "SchedulerConfig has no get_scheduler_cls" in plugin.absent(SimpleNamespace(scheduler_cls=None)).reason
    assert "scheduler stays off" in caplog.text
    assert "batchOrder stays off" in caplog.text
    monkeypatch.setenv(ENVIRONMENT, '{"feather": {"policy": "None such"}}')
    with pytest.raises(ConfigurationError):
        plugin.register()


def test_vllm_scheduler_replaces_unimportable_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import SchedulerConfig

    guard = Guard("scheduler", Counters())
    monkeypatch.setattr(plugin, "GUARD", guard)
    monkeypatch.setattr(SchedulerConfig, "get_scheduler_cls", SchedulerConfig.get_scheduler_cls)  # restored at the end
    monkeypatch.setenv(ENVIRONMENT, '{"feather": null}')
    plugin.register()
    config = SchedulerConfig(max_model_len=64, is_encoder_decoder=False)
    assert config.get_scheduler_cls().__name__ == "make_scheduler"
    monkeypatch.setitem(sys.modules, "plumage_engine.vllm.scheduler", None)
    assert config.get_scheduler_cls().__module__.startswith("vllm.")
    assert (plugin.absent(config), guard.on) == (guard, False)
    assert "plumage_engine.vllm.scheduler" in guard.reason


@pytest.mark.parametrize(
    ("settings", "scheduler_cls", "feature", "reason"),
    [
        ("{}", "vllm.v1.core.sched.scheduler.Scheduler", "scheduler", "names another scheduler, vllm.v1"),
        ("", None, "scheduler", "nothing switches it on: set PLUMAGE_VLLM"),
        ("{}", None, "routes", "the engine core's log has the reason"),
        ("", plugin.SCHEDULER, "routes", "the engine core's log has the reason"),
    ],
)
def test_engine_core_without_plugin_names_cause(
    monkeypatch: pytest.MonkeyPatch, settings: str, scheduler_cls: str | None, feature: str, reason: str
) -> None:
    monkeypatch.setattr(plugin, "GUARD", Guard("scheduler", Counters()))
    monkeypatch.setenv(ENVIRONMENT, settings)
    found = plugin.absent(SimpleNamespace(scheduler_cls=scheduler_cls))
    assert (found.feature, found.on) == (feature, False)
    assert reason in found.reason
