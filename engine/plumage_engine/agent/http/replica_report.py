"""The report of a replica that the agent gives the operator (`plumage.fleet_report`)."""

from __future__ import annotations

import time

from plumage.fleet_report import AgentReport, WarmupReport
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.engine.operator_figures import parse_figures

__all__ = ["report_of"]


async def report_of(agent: Agent) -> AgentReport:
    """As of now; the engine is asked once, and what it does not tell is 0."""
    figures = parse_figures(await agent.engine_page())
    load, waiting = agent.load, int(agent.load.waiting)
    held_back = min(figures.held_back, waiting)
    return AgentReport(
        replica=agent.config.replica,
        at=time.time(),
        started=load.started,
        state=agent.state.name.capitalize(),
        why=agent.why,
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
    )


def _warmup(agent: Agent) -> WarmupReport:
    warmth = agent.warmup_result
    if warmth is None:
        return WarmupReport("Warming" if agent.answered else "Waiting")
    return WarmupReport("Warmed", warmth.prefixes, warmth.tokens, warmth.reason)
