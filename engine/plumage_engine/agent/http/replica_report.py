"""The report of a replica that the agent gives the operator (`plumage.fleet_report`)."""

from __future__ import annotations

import time

from plumage.fleet_report import AgentReport, WarmupReport
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.engine.client import EngineClient, EngineDownError
from plumage_engine.agent.engine.operator_figures import parse_figures

__all__ = ["report_of"]


async def report_of(agent: Agent) -> AgentReport:
    """As of now. It reads the engine's metrics once; a figure that the engine does not have is 0."""
    figures = parse_figures(await _engine_page(agent.engine))
    load, waiting = agent.watch.load, int(agent.watch.load.waiting)
    held_back = min(figures.held_back, waiting)
    return AgentReport(
        replica=agent.config.replica,
        at=time.time(),
        started=load.started,
        state=agent.watch.state.name.capitalize(),
        why=agent.watch.not_ready_reason,
        directory="degraded" if agent.writer.degraded else "ok",
        running=int(load.running),
        waiting=waiting,
        waiting_held_back=held_back,
        waiting_for_capacity=waiting - held_back,
        kv_usage=load.kv_usage,
        cache_tokens=figures.cache_tokens,
        query_tokens=int(load.query_tokens),
        hit_tokens=int(load.hit_tokens),
        output_tokens=figures.output_tokens,
        hotness=float(sum(agent.hotness.uses().values())),
        queue_wait=figures.queue_wait,
        ttft=figures.ttft,
        warmup=_warmup(agent),
        adapters=agent.adapters.reports,
    )


def _warmup(agent: Agent) -> WarmupReport:
    result = agent.watch.warmup
    if result is None:
        return WarmupReport("Warming" if agent.watch.answered else "Waiting")
    return WarmupReport("Warmed", result.prefixes, result.tokens, result.reason)


async def _engine_page(engine: EngineClient) -> str:
    """The engine's /metrics; empty while it does not answer."""
    try:
        return await engine.page()
    except EngineDownError:
        return ""
