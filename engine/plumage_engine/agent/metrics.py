"""What an agent tells scrapers, in Prometheus' text form: the event stream, the index, and what the directory said.

Figures that people want live in `/v1/plumage/stats`; these are the ones an alert would stand on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plumage_engine.agent.agent import Agent

__all__ = ["exposition"]

_PREFIX = "plumage_agent_"
_READ = (
    ("taught", "Engines begun from what other engines learned."),
    ("refused", "Tables that the engine did not take."),
    ("newer_schema", "Values of a newer schema, ignored."),
    ("malformed", "Values that could not be read."),
    ("failures", "Calls that the directory's server did not answer."),
)


def exposition(agent: Agent) -> str:
    """The page of one agent."""
    return "\n".join((*_own(agent), *_directory(agent.directory_counts), ""))


def _own(agent: Agent) -> Iterator[str]:
    index, stream = agent.holdings.index, agent.stream.counters
    gauges = (
        ("ready", "1 while routers may choose the replica.", int(agent.ready)),
        ("degraded", "1 while the directory takes no writes.", int(agent.writer.degraded)),
        ("blocks", "Blocks of the engine in the index.", len(index)),
        ("chunks", "Chunks told to the directory.", agent.writer.count),
    )
    for name, text, value in gauges:
        yield from _head(name, text, "gauge")
        yield f"{_PREFIX}{name} {value}"
    yield from _labelled("events_total", "Event batches and what befell them.", "kind", _fields(stream))
    yield from _labelled("blocks_total", "Block events by what the index did.", "kind", _fields(index.counters))


def _directory(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    for what, text in _READ:
        parts = {part: counted[what] for part, counted in counts.items()}
        yield from _labelled(f"directory_{what}_total", text, "part", parts)


def _labelled(name: str, text: str, label: str, values: Mapping[str, int]) -> Iterator[str]:
    yield from _head(name, text, "counter")
    for key, value in values.items():
        yield f'{_PREFIX}{name}{{{label}="{key}"}} {value}'


def _fields(counters: object) -> dict[str, int]:
    names: tuple[str, ...] = getattr(counters, "__slots__", ())
    return {name: getattr(counters, name) for name in names}


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
