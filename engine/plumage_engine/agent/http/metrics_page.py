"""The agent's metrics page, in Prometheus' text form: event stream, index and directory.

These are for alerts. `/v1/plumage/stats` has more figures.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

from plumage.prometheus.exposition import counters, gauge, page
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.http.stats import fields_of

__all__ = ["metrics_page"]

_PREFIX = "plumage_agent_"
_READ = (
    ("applied", "Engines that started with tables of other engines."),
    ("refused", "Tables that the engine refused."),
    ("newer_schema", "Values of a newer schema, ignored."),
    ("malformed", "Values that could not be read."),
    ("failures", "Calls that the directory's server did not answer."),
)


def metrics_page(agent: Agent) -> str:
    """The page of one agent."""
    return page(_own(agent), _directory({"hotness": agent.hotness.counts, "tables": agent.tables.counts}))


def _own(agent: Agent) -> Iterator[str]:
    index, stream = agent.publisher.index, agent.stream.counters
    now = (
        ("ready", "1 while routers may choose the replica.", int(agent.watch.ready)),
        ("degraded", "1 while the directory refuses writes or is away.", int(agent.writer.degraded)),
        ("config_ignored_fields", "Settings of a newer operator that are ignored.", len(agent.config.ignored)),
        ("blocks", "Blocks of the engine in the index.", len(index)),
        ("tasks", "Tasks of the event loop.", len(asyncio.all_tasks())),
        ("chunks", "Chunks published to the directory.", agent.writer.held.count),
    )
    for name, text, value in now:
        yield from gauge(_PREFIX + name, text, value)
    outcomes, actions = fields_of(stream), fields_of(index.counters)
    yield from counters(_PREFIX + "events", "Event batches, by outcome.", "kind", outcomes)
    yield from counters(_PREFIX + "blocks", "Block events, by the index's action.", "kind", actions)
    yield from counters(
        _PREFIX + "promote", "Reports of the pool's hotness to the engine, by outcome.", "kind", agent.promotion.counts
    )


def _directory(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    for what, text in _READ:
        parts = {part: counted[what] for part, counted in counts.items()}
        yield from counters(f"{_PREFIX}directory_{what}", text, "part", parts)
