"""What `/v1/plumage/stats` answers: the operator's report (`plumage.fleet_report`), and figures for people."""

from __future__ import annotations

import time
from typing import Any

from plumage.fleet_report import AgentReport, WarmupReport
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.engine.client import EngineClient, EngineDownError
from plumage_engine.agent.engine.engine_metrics import parse_figures
from plumage_engine.agent.index.block import last_chunk
from plumage_engine.agent.index.local_hotness import LocalHotness

__all__ = ["agent_stats", "fields_of", "report_of"]

HOTTEST = 10  # prefixes


def agent_stats(agent: Agent) -> dict[str, Any]:
    """Returns the stats. They hold no text, no token id and no secret."""
    index, load, warmup = agent.publisher.index, agent.watch.load, agent.watch.warmup
    policy = agent.batching_policy
    return {
        "replica": agent.config.replica,
        "epoch": agent.writer.epoch,
        "state": agent.watch.state.name.capitalize(),
        "directory": "degraded" if agent.writer.degraded else "ok",
        "chunks": agent.writer.held.count,
        "chunksLeftOut": agent.writer.held.left_out,
        "blocks": len(index),
        "running": int(load.running),
        "waiting": int(load.waiting),
        "kvUsage": load.kv_usage,
        "hitTokens": int(load.hit_tokens),
        "queryTokens": int(load.query_tokens),
        "hottest": _hottest_chunks(index.hotness, HOTTEST),
        "eventCpuMicros": round(agent.publisher.cpu_micros_per_block, 2),
        "synced": agent.stream.synced.is_set(),
        "events": fields_of(agent.stream.counters),
        "index": fields_of(index.counters),
        "withheld": len(agent.publisher.throttle),
        "promote": dict(agent.promotion.counts),
        "feather": policy and {**policy.counts, "error": policy.error},
        "lossy": list(agent.lossy),
        "warmup": warmup and {"prefixes": warmup.prefixes, "tokens": warmup.tokens, "reason": warmup.reason},
    }


def fields_of(counters: object) -> dict[str, int]:
    """The values of a class with `__slots__`, by name."""
    names: tuple[str, ...] = getattr(counters, "__slots__", ())
    return {name: getattr(counters, name) for name in names}


def _hottest_chunks(hotness: LocalHotness, most: int) -> list[dict[str, Any]]:
    """Prefixes by the hash of their last whole chunk."""
    hottest = [(last_chunk(block), block.tokens, uses) for block, uses in hotness.hottest(most)]
    return [
        {"chunk": f"{chunk:016x}", "tokens": tokens, "count": uses}
        for chunk, tokens, uses in hottest
        if chunk is not None
    ]


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
