"""The tables and the plot of `bench trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plumage.plural import counted
from plumage_bench.benches.trace import libcache, routed
from plumage_bench.benches.trace.hitratios import BOUND, OURS, SHARES, Margin, Ratios
from plumage_bench.benches.trace.routed import Routed
from plumage_bench.harness import ResultTable

__all__ = ["draw", "margins_table", "ratios_table", "routed_tables"]

_SIZES = tuple(f"{share:.0%}" for share in SHARES)


def ratios_table(rows: Mapping[str, Ratios], about: str, *, second: bool) -> ResultTable:
    """A row for each policy, a column for each size."""
    cells = [
        [name, *(f"{row[share].second if second else row[share].whole:.4f}" for share in SHARES)]
        for name, row in rows.items()
    ]
    if second:
        notes = "The second half of the requests, with the cache and the policy as the first half left them."
        return ResultTable("(a) One cache: hit ratio, second half", ("", *_SIZES), cells, notes)
    notes = (
        f"Hits ÷ block accesses, by cache size in % of the distinct blocks. {about} {OURS} does not admit the partial "
        "last block of a prompt, because an engine caches full blocks only; its access counts as a miss. Rows marked "
        "'+ partial' or '- partial' handle it the other way. Ours is the mean over seeds of the hashes that name the "
        "blocks, 'worst' the least at each size. libCacheSim's policies have their defaults; not run: "
        f"{libcache.LEFT_OUT}."
    )
    return ResultTable("(a) One cache: hit ratio, whole trace", ("", *_SIZES), cells, notes)


def margins_table(margins: Mapping[str, Sequence[Margin]]) -> ResultTable:
    """For each comparison and size the best of theirs, and ours ÷ it."""
    cells = [
        [label, size, m.best, f"{m.ratio:.4f}", f"{m.ours:.4f}", f"{m.over:.3f}"]
        for label, row in margins.items()
        for size, m in zip(_SIZES, row, strict=True)
    ]
    columns = ("", "size", "best", "its", "ours", "ours ÷ best")
    notes = "'worst': of our seeds. 'both +': both sides admit partial blocks; 'both -': neither does."
    return ResultTable("(a) Ours beside the best of libCacheSim", columns, cells, notes)


def routed_tables(rows: Mapping[str, Routed], seeds: int, factor: float, requests: int) -> list[ResultTable]:
    """A row for each routing policy: hits, first token and balance; then complete answers."""
    firsts = [
        [
            name,
            f"{row.hit_ratio:.3f}",
            *(_seconds(value) for value in (row.ttft_p50, row.ttft_p95, row.ttft_p99)),
            f"{row.balance:.2f}",
            f"{row.muv:.2f}",
        ]
        for name, row in rows.items()
    ]
    whole = [
        [name, *(_seconds(value) for value in (row.latency_p50, row.latency_p95, row.latency_p99))]
        for name, row in rows.items()
    ]
    notes = (
        f"{requests:,} requests at the trace's arrival times × {factor:g} (so that prefill with cold caches would take "
        f"{routed.COLD_LOAD:.0%} of the workers' time, or less), mean of {counted(seeds, 'seed')}. Seconds of virtual "
        f"time on the gpu preset, {routed.CACHE_BLOCKS:,} cache blocks of 512 tokens a worker; the eviction is named "
        "after the routing. Balance: coefficient of variation of the tokens a worker computed. MUV: deviation in "
        "time of KV usage, mean over workers."
    )
    title = f"(b) {routed.WORKERS} workers, virtual time"
    columns = ("", "hits", "TTFT P50", "P95", "P99", "balance", "MUV")
    return [
        ResultTable(f"{title}: hit ratio and first token", columns, firsts, notes),
        ResultTable(f"{title}: end to end", ("", "P50", "P95", "P99"), whole),
    ]


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def draw(figure: Any, theirs: Mapping[str, Ratios], ours: Mapping[str, Ratios], rows: Mapping[str, Routed]) -> None:
    """Hit ratio by size on the left, hit ratio against TTFT of the fleets on the right."""
    left, right = figure.subplots(1, 2)
    sizes = [100 * share for share in SHARES]
    leaders = {max(theirs, key=lambda name: theirs[name][share].whole) for share in SHARES} | {"LRU"} & set(theirs)
    for name, row in sorted(theirs.items(), key=lambda item: item[0] in leaders):
        style: dict[str, Any] = {"label": name} if name in leaders else {"color": "lightgrey", "linewidth": 0.8}
        left.plot(sizes, [row[share].whole for share in SHARES], marker=".", **style)
    for name, row in ours.items():
        line = "-" if name == OURS else "--" if name == BOUND else ":"
        style = {"color": "black", "linestyle": line, "linewidth": 2 if name == OURS else 1}
        left.plot(sizes, [row[share].whole for share in SHARES], label=name, **style)
    left.set(xscale="log", xlabel="cache, % of the distinct blocks", ylabel="hit ratio", title="one cache, whole trace")
    left.set_xticks(sizes, [f"{size:g}" for size in sizes])
    left.minorticks_off()
    left.legend(fontsize="small", title="grey: libCacheSim's others", title_fontsize="x-small")
    for index, (name, fleet) in enumerate(rows.items()):
        right.plot(fleet.hit_ratio, fleet.ttft_p95, "o", color="steelblue" if index else "black")
        right.annotate(name, (fleet.hit_ratio, fleet.ttft_p95), fontsize=6, xytext=(3, 3), textcoords="offset points")
    right.set(yscale="log", xlabel="hit ratio", ylabel="P95 TTFT, s", title=f"{routed.WORKERS} workers")
