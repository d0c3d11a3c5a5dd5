"""`operator-scale`: the cost of 1,000 pools of 10 pods for the operator, on a real control plane with pods that are
objects only.

etcd, API server, controllers and scheduler are real. kwok replaces the kubelets and makes each placed pod Ready. The
operator is a process with its own role. Two clusters run one after the other. In the first the Deployments of all pools
are applied without pools (`bare_s`). In the second the pools are applied (`converge_s`: until all their conditions are
as expected). The operator polls agents and routers as usual; one process answers for all of them with the figures of an
idle fleet. Writes are counted in the API server's audit log, which has the user. With `children=1` a third cluster runs
between the two, where all children of the pools are created without an operator. `children_s` is their cost for the
cluster with any operator.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError
from plumage_bench.benches.operator_scale import network, objects
from plumage_bench.benches.operator_scale.checkout import Cluster, cluster, pod_addresses
from plumage_bench.benches.operator_scale.crowd import Course
from plumage_bench.benches.operator_scale.phases import Bare, Operated, bare, operated
from plumage_bench.harness import Context, Figure, Report, ResultTable

__all__ = ["run"]

_POOLS, _QUICK_POOLS = 1_000, 100
_IDLE, _QUICK_IDLE = 300.0, 60.0
_PODS_A_NODE = 100
_MOST_POOLS = 1_500  # each has two Services with an address, of 4,094 addresses


def run(context: Context) -> Report:
    """converge_s, bare_s, restart_s in seconds. rss_mb is the peak memory of a process of the operator."""
    network.enter(pod_addresses(), "plumage_cli", sys.argv[1:])
    pools, idle = _size(context)
    load, nodes = os.getloadavg()[0], max(1, pools * objects.PODS_A_POOL // _PODS_A_NODE)
    alone = _without(context, nodes, pools, "Deployments without an operator", objects.deployments)
    made = _children(context, nodes, pools)
    found = _with(context, nodes, pools, idle)
    keys: dict[str, Figure] = {
        "pools": pools,
        "pods": pools * objects.PODS_A_POOL,
        "converge_s": round(found.course.took, 1),
        "bare_s": round(alone.course.took, 1),
        **({} if made is None else {"children_s": round(made.course.took, 1)}),
        "idle_writes": sum(found.idle.writes.values()),
        "restart_s": round(found.restart, 1),
        "rss_mb": round(max(found.peaks)),
        "reconcile_p99_ms": round(1000 * found.figures.p99),
    }
    halves = {"Deployments": alone, **({} if made is None else {"children": made})}
    plot = partial(_plot, courses={name: half.course for name, half in halves.items()}, found=found, pools=pools)
    return Report(keys, _tables(halves, found), plot, _data(halves, found, load))


def _size(context: Context) -> tuple[int, float]:
    """The number of pools, and the idle seconds."""
    pools, idle = (_QUICK_POOLS, _QUICK_IDLE) if context.quick else (_POOLS, _IDLE)
    given = context.options.get("pools", str(pools))
    if not (given.isascii() and given.isdigit() and 1 <= int(given) <= _MOST_POOLS):
        raise ConfigurationError(f"pools={given}: it must be a whole number from 1 to {_MOST_POOLS}")
    return int(given), idle


def _children(context: Context, nodes: int, pools: int) -> Bare | None:
    asked = context.options.get("children", "0")
    if asked not in ("0", "1"):
        raise ConfigurationError(f"children={asked}: it must be 1, for a third cluster with the children alone, or 0")
    made = partial(_without, context, nodes, pools, "children without an operator", objects.children)
    return made() if asked == "1" else None


def _without(
    context: Context, nodes: int, pools: int, what: str, made: Callable[[int], Iterator[dict[str, Any]]]
) -> Bare:
    with _cluster(nodes) as one, context.progress(what, 3 * pools) as advance:
        return asyncio.run(bare(one, pools, advance, made))


def _with(context: Context, nodes: int, pools: int, idle: float) -> Operated:
    with _cluster(nodes) as one, context.progress("pools", pools) as advance:
        return asyncio.run(operated(one, pools, idle, advance))


@contextmanager
def _cluster(nodes: int) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="plumage-scale-") as folder, cluster(nodes, Path(folder)) as one:
        yield one


def _tables(halves: Mapping[str, Bare], found: Operated) -> list[ResultTable]:
    columns = {**{name: half.processor for name, half in halves.items()}, "pools": found.processor}
    programs = sorted({program for processor in columns.values() for program in processor})
    processor: list[list[Figure]] = [
        [program, *(round(of[program], 1) if program in of else "" for of in columns.values())] for program in programs
    ]
    verbs = sorted({*found.requests, *found.idle.requests})
    requests: list[list[Figure]] = [
        [verb, found.requests.get(verb, 0), found.idle.requests.get(verb, 0)] for verb in verbs
    ]
    at_rest = f"{found.idle.processor:.1f} s of CPU time while idle, in {found.idle.seconds:.0f} s"
    return [
        ResultTable("Seconds of CPU time until all had converged", ("program", *columns), processor),
        ResultTable("The operator's requests", ("verb", "until converged", "at rest"), requests, at_rest),
    ]


def _data(halves: Mapping[str, Bare], found: Operated, load: float) -> dict[str, Any]:
    return {
        "without": {
            name: {"seconds": _rounded(half.course.seconds), "deployments": half.course.counts,
                   "processor_s": {program: round(seconds, 2) for program, seconds in half.processor.items()}}
            for name, half in halves.items()
        },
        "converging": {"seconds": _rounded(found.course.seconds), "pools": found.course.counts},
        "looks": {"count": found.figures.looks.count, "seconds": round(found.figures.looks.total, 2)},
        "idle": {"seconds": found.idle.seconds, "writes": found.idle.writes, "requests": found.idle.requests,
                 "processor_s": round(found.idle.processor, 2)},
        "requests": found.requests,
        "processor_s": {name: round(seconds, 2) for name, seconds in found.processor.items()},
        "rss_mb": [round(peak, 1) for peak in found.peaks],
        "load_before": round(load, 2),
    }  # fmt: skip


def _rounded(seconds: list[float]) -> list[float]:
    return [round(one, 2) for one in seconds]


def _plot(figure: Any, courses: Mapping[str, Course], found: Operated, pools: int) -> None:
    axes = figure.subplots()
    for name, course in courses.items():
        axes.plot(course.seconds, [count / 3 for count in course.counts], label=f"their {name}, without an operator")
    axes.plot(found.course.seconds, found.course.counts, label="pools: all conditions as expected")
    axes.set(xlabel="seconds since the first was applied", ylabel=f"complete, of {pools}")
    axes.legend()
    figure.suptitle(f"{pools} pools, {pools * objects.PODS_A_POOL} pods")
