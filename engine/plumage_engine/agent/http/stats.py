"""The figures of an agent for people: `/v1/plumage/stats`, beside the operator's report."""

from __future__ import annotations

from typing import Any

from plumage_engine.agent.agent import Agent
from plumage_engine.agent.index.block import last_chunk
from plumage_engine.agent.index.local_hotness import LocalHotness

__all__ = ["agent_stats", "fields_of"]

HOTTEST = 10  # prefixes


def agent_stats(agent: Agent) -> dict[str, Any]:
    """It holds no text, no token id and no secret."""
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
