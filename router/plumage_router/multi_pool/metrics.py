"""The metrics of several pools: those of each pool with the label `pool`, those of the port without.

Each pool's families are written as by a router of its own. Then they are merged, because the text format needs all
samples of a family together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from plumage.prometheus import exposition
from plumage_router.admin.process_metrics import process_lines
from plumage_router.admin.status import metric_lines, tracing_lines
from plumage_router.http.tls import tls_lines
from plumage_router.multi_pool.dispatcher import PoolDispatcher

__all__ = ["merge_families", "multi_pool_metrics", "port_lines", "route_lines"]

_PREFIX = "plumage_router_"
_PORT_FAMILIES = frozenset(f"{_PREFIX}{name}" for name in ("connections", "buffered_bytes"))
"""Families that belong to the port, so the pools' are left out."""


def multi_pool_metrics(dispatcher: PoolDispatcher, accept: str) -> tuple[str, str]:
    """Returns all metrics in a format that the scraper accepts, and the content type."""
    process = (
        dispatcher.metrics.lines(),
        port_lines(dispatcher),
        route_lines(dispatcher.routed, dispatcher.copies.outcomes, len(dispatcher.copies)),
        tls_lines(_PREFIX, dispatcher.tls_acceptors),
        tracing_lines(dispatcher.tracing),
        process_lines(),
    )
    pages = [("", list(chain(*process)))]
    pages += [(name, [*metric_lines(pool)]) for name, pool in dispatcher.pools.items()]
    return exposition.wanted_page(accept, merge_families(pages))


def merge_families(pages: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Merges pages of (pool, lines), each family once. A page with the pool "" gets no label."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for pool, lines in pages:
        name = ""
        for line in lines:
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
            if pool and name in _PORT_FAMILIES:
                continue
            head, samples = families.setdefault(name, ([], []))
            if not line.startswith("#"):
                samples.append(_labelled(line, pool) if pool else line)
            elif len(head) < 2:
                head.append(line)
    for head, samples in families.values():
        yield from head
        yield from samples


def _labelled(sample: str, pool: str) -> str:
    name, brace, rest = sample.partition("{")
    label = f'pool="{exposition.label_value(pool)}"'
    if brace:
        return f"{name}{{{label},{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"


def route_lines(
    routed: Mapping[tuple[str, ...], int], copied: Mapping[tuple[str, ...], int], copies: int
) -> Iterator[str]:
    """Returns where requests went. routed: by model and pool. copied: by model, pool and outcome. copies: in flight."""
    text = "Requests for models with several pools or a fallback, by the pool that got them."
    yield from exposition.counters_by(_PREFIX + "split_requests", text, ("model", "pool"), routed)
    text = "Copies of requests for a pool whose answers nobody gets, by what became of them."
    yield from exposition.counters_by(_PREFIX + "copied_requests", text, ("model", "pool", "outcome"), copied)
    yield from exposition.gauge(_PREFIX + "copies_in_flight", "Copies of requests in flight.", copies)


def port_lines(dispatcher: PoolDispatcher) -> Iterator[str]:
    """Returns the gauges of the port, which no pool has."""
    single = (
        ("connections", "Client connections.", len(dispatcher.connections)),
        ("buffered_bytes", "Bytes of request bodies in memory.", dispatcher.body_memory.used),
        ("pools", "Pools that are served.", len(dispatcher.pools)),
        ("pools_broken", "Pools of the configuration that cannot be served.", len(dispatcher.broken)),
        ("config_stale", "1 while a part of the configuration file is not in force.", bool(dispatcher.config_error)),
        ("keys_stale", "1 while a changed key file cannot be used.", dispatcher.port_keys_error is not None),
        ("config_ignored_fields", "Ignored settings of a newer operator.", dispatcher.config_ignored),
    )
    for name, text, value in single:
        yield from exposition.gauge(_PREFIX + name, text, value)
