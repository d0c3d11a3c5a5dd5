"""The replica's state while its engine loads adapters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plumage.directory.schema import State
from plumage_engine.agent.engine.engine_metrics import EngineLoad
from plumage_engine.agent.engine_updates.adapters import AdapterSync
from plumage_engine.agent.lifecycle.state_watch import StateWatch
from plumage_engine.agent.lifecycle.warmup import WarmupResult


@pytest.mark.parametrize(("tokens", "state"), [(1000, State.READY), (0, State.WARMING)])
async def test_only_a_new_engine_is_not_ready_before_its_adapters_are_loaded(tokens: int, state: State) -> None:
    """An agent that restarts beside an engine that serves leaves the replica ready, though an adapter is loading."""

    async def load() -> EngineLoad:
        return EngineLoad(query_tokens=tokens)

    engine: Any = SimpleNamespace(load=load)
    writer: Any = SimpleNamespace(report=lambda **_: None)
    config: Any = SimpleNamespace(stalled_seconds=30.0, load_seconds=0.5, replica="chat-0")
    watch = StateWatch(config, engine, writer, lambda: 0, AdapterSync({"sql": "/sql"}, engine))
    await watch.check()
    if watch.warmup is None:
        watch.finish_warmup(WarmupResult())
    assert watch.state is state
