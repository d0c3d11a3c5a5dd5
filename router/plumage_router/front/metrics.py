"""The metrics of a front: what every pool's router would tell, with the pool as a label; what no pool got, without.

Each pool's families are written as a router of its own writes them, and put together family by family: the text form
wants all samples of one beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from plumage import exposition
from plumage_router.front.host import Front
from plumage_router.process import process_lines
from plumage_router.status import metric_lines

__all__ = ["front_metrics", "merge_families"]

_PREFIX = "plumage_router_"
_OF_THE_PORT = frozenset(f"{_PREFIX}{name}" for name in ("connections", "buffered_bytes"))
"""Families of which a pool behind a front has nothing to tell."""


def front_metrics(front: Front, accept: str) -> tuple[str, str]:
    """Everything in the form that a scraper accepts, and its content type."""
    pages = [("", [*front.metrics.lines(), *_port(front), *process_lines()])]
    pages += [(pool, [*metric_lines(gateway)]) for pool, gateway in front.gateways.items()]
    return exposition.wanted_page(accept, merge_families(pages))


def merge_families(pages: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Lines of (pool, page), each family once. A page of no pool gets no label, and leads."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for pool, lines in pages:
        name = ""
        for line in lines:
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
            if pool and name in _OF_THE_PORT:
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


def _port(front: Front) -> Iterator[str]:
    single = (
        ("connections", "Client connections.", len(front.connections)),
        ("buffered_bytes", "Request bodies held.", front.room.held),
        ("pools", "Pools that are served.", len(front.gateways)),
        ("pools_broken", "Pools of the configuration that can't be served.", len(front.broken)),
        ("config_stale", "1 while the file asks for more than is in force.", bool(front.config_error)),
        ("keys_stale", "1 while a file of keys changed and can't be used.", front.auth.error is not None),
        ("config_ignored_fields", "Settings of a newer operator, passed over.", front.config_ignored),
    )
    for name, text, value in single:
        yield from exposition.gauge(_PREFIX + name, text, value)
