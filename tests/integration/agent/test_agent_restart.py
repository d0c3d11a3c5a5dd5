"""An agent ends, and starts again beside an engine that continued to work."""

from __future__ import annotations

from functools import partial

import pytest
from support.agents import ask, running, settings, until

from plumage_engine.agent.http.stats import agent_stats

pytestmark = pytest.mark.redis


async def test_engine_stays_warm_after_agent_restart(directory, make_engine) -> None:
    engine, pool = make_engine(), "lost-agent"
    peers = {"warmup": {"peers": ["http://127.0.0.1:9"]}}
    async with running(settings(directory, pool, engine, **peers)) as agent:
        await until(lambda: agent.watch.ready, partial(agent_stats, agent))
        assert agent.watch.warmup is not None
        assert agent.watch.warmup.reason == "no peer had anything"
        await ask(engine, "one word and another " * 20)
    async with running(settings(directory, pool, engine, **peers)) as back:
        await until(lambda: back.watch.ready, partial(agent_stats, back))
        assert back.watch.warmup is not None
        assert back.watch.warmup.reason == "its engine has served before"
