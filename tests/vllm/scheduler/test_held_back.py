"""The number of requests that FEATHER holds back on purpose. An autoscaler must not count them as overload."""

from __future__ import annotations

import json
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from support.offload_tier import chain

from plumage_bench.vllm.engine import plugin_arguments
from plumage_bench.vllm.pretend import PretendEngine
from plumage_engine.agent.engine.engine_metrics import parse_figures
from plumage_engine.vllm.routes.plugin_metrics import PluginMetrics

LEVELS = 8  # more shared levels than the Heuristic policy gives up for another request


def held_back(engine: PretendEngine) -> int:
    """The number of requests held back, from the engine core's stats. The metrics page shows the same to the agent."""
    status, body = engine.scheduler.routes.answer("stats", b"")
    assert status == 200
    page, registry = PluginMetrics(), CollectorRegistry()
    page.stats = json.loads(body)
    registry.register(page)
    return parse_figures(generate_latest(registry).decode()).held_back


def serving(model: Path, limit: int) -> PretendEngine:
    settings = {"feather": {"policy": "Heuristic", "chunkTokens": 32, "orderBatch": False}, "batchLimit": "Static"}
    engine = PretendEngine(model, blocks=400, max_num_seqs=limit, **plugin_arguments(settings))
    for number in range(4):
        engine.add(f"group {number}", chain(0, LEVELS) + chain(10 + number, 1)[:9], 40)
    for _ in range(4):
        engine.step()
    assert len(engine.scheduler.running) == 4
    assert held_back(engine) == 0
    for number in range(2):
        engine.add(f"stranger {number}", chain(50 + number, LEVELS), 2)
    engine.step()
    return engine


def test_other_prefix_is_held_back_despite_room(tiny_model: Path) -> None:
    engine = serving(tiny_model, limit=8)
    assert [one.request_id for one in engine.scheduler.waiting] == ["stranger 0", "stranger 1"]
    assert held_back(engine) == 2
    engine.add("stranger 2", chain(52, LEVELS), 2)
    assert held_back(engine) == 2, "the policy was not asked about the last one yet"
    engine.abort("stranger 2")
    engine.abort("stranger 1")
    assert held_back(engine) == 1
    engine.finish()
    assert held_back(engine) == 0


def test_full_batch_holds_nothing_back(tiny_model: Path) -> None:
    engine = serving(tiny_model, limit=4)
    assert len(engine.scheduler.waiting) == 2
    assert held_back(engine) == 0


def test_failed_feather_holds_nothing_back(tiny_model: Path) -> None:
    engine = serving(tiny_model, limit=8)
    engine.scheduler.plumage.guards["feather"].failed(RuntimeError("a test's"))
    assert len(engine.scheduler.waiting) == 2
    assert held_back(engine) == 0
    engine.finish()
