"""What the policy Predictive learns in vLLM's scheduler, in stats and metrics."""

from __future__ import annotations

import json
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from support.offload_tier import chain

from plumage.batching.stop.step_time import COEFFICIENTS
from plumage_bench.vllm.engine import plugin_arguments
from plumage_bench.vllm.pretend import PretendEngine
from plumage_engine.vllm.routes.plugin_metrics import PluginMetrics

LEVELS = 8


def serving(model: Path, policy: str) -> PretendEngine:
    settings = {"feather": {"policy": policy, "chunkTokens": 32}, "batchLimit": "Static"}
    engine = PretendEngine(model, blocks=400, max_num_seqs=4, **plugin_arguments(settings))
    for number in range(12):
        engine.add(f"request {number}", chain(number % 2, LEVELS) + chain(10 + number, 1)[:9], 40)
    return engine


def stats(engine: PretendEngine) -> dict:
    status, body = engine.scheduler.routes.answer("stats", b"")
    assert status == 200
    return json.loads(body)


def page(found: dict) -> str:
    metrics, registry = PluginMetrics(), CollectorRegistry()
    metrics.stats = found
    registry.register(metrics)
    return generate_latest(registry).decode()


def test_fit_is_reported_once_there_is_one(tiny_model: Path) -> None:
    engine = serving(tiny_model, "Predictive")
    engine.step()
    assert "stepTime" not in stats(engine)
    for _ in range(60):
        engine.step()
    found = stats(engine)
    assert set(found["stepTime"]) == set(COEFFICIENTS)
    assert sum(found["stepTime"].values()) > 0
    assert found["stepTimeError"] >= 0
    for of, seconds in found["stepTime"].items():
        assert f'plumage_engine_step_time_seconds{{of="{of}"}} {seconds}' in page(found)
    engine.finish()


def test_other_policy_reports_no_fit(tiny_model: Path) -> None:
    engine = serving(tiny_model, "ChtOrder")
    for _ in range(60):
        engine.step()
    assert "plumage_engine_step_time_seconds{" not in page(stats(engine))
    engine.finish()
