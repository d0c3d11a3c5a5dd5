"""A renamed attribute of vLLM's live objects only disables the features that need it. The engine starts, these features
are off and name the attribute, requests are served, and all blocks are freed.

Every name in the `Live` tables of `compat` is hidden in turn, with all features enabled: vLLM's own code and the tests
find it, but the plugin's modules do not.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.vllm.scheduler.test_moved_names import serves_on
from vllm.config import KVEventsConfig, VllmConfig
from vllm.v1.engine.async_llm import AsyncLLM

from plumage_bench.vllm.engine import plugin_arguments
from plumage_bench.vllm.pretend import PretendEngine, host_tier_arguments
from plumage_engine.vllm import compat
from plumage_engine.vllm.compat import adapters, entrypoints
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.endpoints import PlumageEndpoints
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload import fallback
from plumage_engine.vllm.settings import ENVIRONMENT

_FEATURES = {
    "block_pool": "eviction",
    "events": "record",
    "kv_metrics": "kvMetrics",
    "kv_offload": "promotion",
    "kv_tiering": "disk",
    "limit": "batchLimit",
    "scheduler": "feather",
}
"""By module of `compat` with a `Live` table: the features that use it."""
_ALSO = {
    "BlockPool.cached_block_hash_to_block": {"stats"},
    "BlockPool.num_gpu_blocks": {"stats"},
    "ReqContext._offload_key_positions": {"hostTier"},
    "Scheduler.block_size": {"stats"},
    "Scheduler.connector": {"hostTier"},
    "Scheduler.kv_cache_manager": {"eviction", "promotion", "stats"},
    "Scheduler.max_model_len": {"stats"},
    "Scheduler.max_num_active_reqs": {"stats"},
    "Scheduler.running": {"stats"},
    "Scheduler.vllm_config": {"hostTier"},
    "Scheduler.waiting": {"promotion"},
}
"""Features that need it without a table: they fail when they are installed, or at their first step."""
_INSTEAD: dict[str, set[str]] = {
    "OffloadingConnectorScheduler.manager": {"hostTier"},
    "SharedOffloadRegion._creator": {"hostTier"},
}
_BY_CONSEQUENCE = "selective admission is off"


class _Moved:
    """vLLM has the value under another name. A value that the plugin sets is the plugin's own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _values(self, made: Any) -> MutableMapping[str, Any]:
        caller = sys._getframe(2).f_globals["__name__"]
        ours = caller.startswith("plumage_engine.")
        values: MutableMapping[str, Any] = made.__dict__.setdefault("_ours" if ours else "_moved", {})
        return values

    def __get__(self, made: Any, owner: type | None = None) -> Any:
        values = self._values(made)
        if self._name not in values:
            raise AttributeError(f"{type(made).__name__!r} object has no attribute {self._name!r}")
        return values[self._name]

    def __set__(self, made: Any, value: Any) -> None:
        self._values(made)[self._name] = value


def _tables() -> Iterator[tuple[str, type, str]]:
    """(module, class, attribute) of each `Live` table but the API server's."""
    for file in sorted(Path(compat.__file__).parent.glob("*.py")):
        module = import_module(f"{compat.__name__}.{file.stem}") if "LIVE: Live" in file.read_text() else None
        for owner, names in getattr(module, "LIVE", {}).items():
            if module not in (adapters, entrypoints):
                yield from ((file.stem, owner, name) for name in names)


def _cases() -> dict[str, tuple[type, str, set[str]]]:
    """By `Class.attribute`: the class, the attribute, and the features that are off without it."""
    cases: dict[str, tuple[type, str, set[str]]] = {}
    needed = defaultdict[str, set[str]](set)
    for module, owner, name in _tables():
        key = f"{owner.__name__}.{name}"
        needed[key].add(_FEATURES[module])
        cases[key] = owner, name, _INSTEAD.get(key, needed[key] | _ALSO.get(key, set()))
    return cases


_EVERYTHING = {"feather": {"orderBatch": True}, "hostTier": {}}
"""All features of the plugin; sorting the batch is not a default."""
_CASES = _cases()


def test_cases_are_names_of_tables() -> None:
    assert {*_ALSO, *_INSTEAD} <= set(_CASES)


@pytest.mark.parametrize("case", _CASES)
def test_missing_attribute_disables_its_features(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    owner, name, concerned = _CASES[case]
    monkeypatch.setattr(owner, name, _Moved(name), raising=False)
    monkeypatch.setattr(fallback, "GUARD", Guard("hostTier", Counters()))  # the process's
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=f"inproc://{case}")
    tier = host_tier_arguments(16, disk_path=str(tmp_path), disk_bytes_to_use=1 << 24)
    engine = PretendEngine(tiny_model, blocks=24, kv_events_config=events, **plugin_arguments(_EVERYTHING), **tier)
    try:
        serves_on(engine)
        status, stats = engine.scheduler.routes.answer("stats", b"")
    finally:
        engine.close()
    off = {name: state["reason"] for name, state in json.loads(stats)["features"].items() if not state["on"]}
    assert status == 200
    assert set(off) == concerned
    assert all(name in reason or reason == _BY_CONSEQUENCE for reason in off.values()), off


def test_environment_replaces_missing_additional_config(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(config: VllmConfig) -> Any:
        if sys._getframe(1).f_globals["__name__"].startswith("plumage_engine."):
            raise AttributeError("additional_config")
        return vars(config)["additional_config"]

    moved = property(read, lambda config, value: vars(config).update(additional_config=value))
    monkeypatch.setattr(VllmConfig, "additional_config", moved, raising=False)
    monkeypatch.setenv(ENVIRONMENT, json.dumps({"feather": {"policy": "Heuristic"}, "eviction": None}))
    engine = PretendEngine(tiny_model, blocks=24, **plugin_arguments({}))
    try:
        serves_on(engine)
        guards = engine.scheduler.plumage.guards
        assert guards["feather"].on
        assert "eviction" not in guards
    finally:
        engine.close()


@pytest.mark.parametrize("name", [name for names in adapters.LIVE.values() for name in names])
async def test_api_server_names_missing_attribute_of_its_models(name: str) -> None:
    """No adapter can be loaded, and the agent reports why."""
    (owner,) = adapters.LIVE
    plugin = PlumageEndpoints()
    plugin.attach_router(application := Starlette())
    await plugin.init_state(None, SimpleNamespace(openai_serving_models=owner.__new__(owner)), None)
    transport = httpx.ASGITransport(app=application, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        answer = await http.post("/v1/plumage/adapters", json={"adapters": {}})
    assert answer.status_code == 501
    assert name in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", [name for names in entrypoints.LIVE.values() for name in names])
async def test_api_server_names_missing_client_attribute(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The API server's part of Plumage's routes is off; vLLM's routes are not."""

    class Client(AsyncLLM):
        def __init__(self) -> None:
            for each in set(named) - {name}:
                setattr(self, each, None)

        def __del__(self) -> None:
            pass

    (named,) = entrypoints.LIVE.values()
    registry = CollectorRegistry()
    monkeypatch.setattr(entrypoints, "get_prometheus_registry", lambda: registry)
    monkeypatch.setenv(ENVIRONMENT, "{}")
    plugin = PlumageEndpoints()
    plugin.attach_router(application := Starlette(routes=[Route("/v1/models", lambda _: PlainTextResponse("vllm"))]))
    await plugin.init_state(Client(), None, None)
    transport = httpx.ASGITransport(app=application, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        state = (await http.get("/v1/plumage/stats")).json()["features"]["routes"]
        assert (await http.get("/v1/models")).text == "vllm"
    assert not state["on"]
    assert name in state["reason"]
    assert registry.get_sample_value("plumage_engine_feature_on", {"feature": "routes"}) == 0.0
