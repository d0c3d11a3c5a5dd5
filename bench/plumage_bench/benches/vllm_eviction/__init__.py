"""`plumage bench vllm-eviction`: the benchmark `eviction` on vLLM's own block pool, and the cost of eviction there.

LRU is vLLM's own order, without the plugin. Workloads and sizes are those of the benchmark `eviction`. Hits are blocks
found on the device. A seed repeats them exactly; only the workload differs between seeds. Ratios are paired by seed,
with an interval over seeds. For the worst order only areas are given: LRU finds nothing there, so a ratio to it is
undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from plumage_bench.benches.eviction import LOOP_SHARES, QUICK_SHARES, SUITE_ROOM, TOKENS_200K
from plumage_bench.benches.eviction.workloads import (
    SUITE_BATCH,
    Workload,
    few_shot,
    gsp_loop_blocks,
    gsp_worst_order,
    multi_turn,
)
from plumage_bench.benches.vllm_eviction.pool import STOCK, replay
from plumage_bench.benches.vllm_eviction.pool_cost import LOADS, Cost, measure
from plumage_bench.harness import Context, Report, ResultTable, interval_keys, least_keys
from plumage_bench.pairs import PairedRatio, paired_ratio

__all__ = ["run"]

POLICIES = (STOCK, "Rlt", "Hotness")
_COST_BLOCKS = 100_000
_STEP_BLOCKS = 16
"""The most blocks that a decode step allocates for 256 requests with blocks of 16 tokens."""

SEEDS, SEEDS_QUICK = 20, 2
Ratios = Mapping[str, Sequence[float]]
"""For each policy the hit ratio by seed."""


def run(context: Context) -> Report:
    seeds = [context.seed + offset for offset in range(SEEDS_QUICK if context.quick else SEEDS)]
    shares = QUICK_SHARES if context.quick else LOOP_SHARES
    with context.progress("vllm-eviction", len(shares) + len(SUITE_BATCH) + 1 + len(LOADS)) as advance:

        def hits(make: Callable[[int], Workload], fixed: bool = False) -> Ratios:
            """fixed: all seeds have the same order, so only a policy with random choices needs more than the first."""
            found = {}
            for policy in POLICIES:
                over = seeds[:1] if fixed and policy != "Rlt" else seeds
                found[policy] = [replay(make(seed), policy, seed) for seed in over]
            advance(1)
            return found

        curve = {
            share: hits(lambda seed, share=share: gsp_worst_order(seed, int(gsp_loop_blocks() * share)), True)  # type: ignore[misc]
            for share in shares
        }
        suites = {
            suite: hits(lambda seed, suite=suite: few_shot(seed, suite, SUITE_ROOM))  # type: ignore[misc]
            for suite in SUITE_BATCH
        }
        turns = hits(lambda seed: multi_turn(seed, TOKENS_200K))
        costs: list[Cost] = []
        for load in LOADS:
            pairs = 8 if context.quick else 24
            costs += measure(load, POLICIES[1:], blocks=_COST_BLOCKS, pairs=pairs, seed=context.seed)
            advance(1)
    return _report(curve, suites, turns, costs)


def _report(
    curve: Mapping[float, Ratios],
    suites: Mapping[str, Ratios],
    turns: Ratios,
    costs: Sequence[Cost],
) -> Report:
    area = {policy: [fmean(fmean(ratios[policy]) for ratios in curve.values())] for policy in POLICIES}
    hot = [paired_ratio(ratios["Hotness"], ratios[STOCK]) for ratios in suites.values()]
    hot_turns, rlt_turns = (paired_ratio(turns[policy], turns[STOCK]) for policy in ("Hotness", "Rlt"))
    keys = {
        "rlt_area": area["Rlt"][0],
        "lru_area": area[STOCK][0],
        **least_keys("hotness_over_lru", hot),
        **interval_keys("multiturn_hotness", hot_turns),
        **interval_keys("multiturn_rlt", rlt_turns),
        "cost_hotness": max(cost.over.ratio for cost in costs if cost.policy == "Hotness"),
        "cost_rlt": max(cost.over.ratio for cost in costs if cost.policy == "Rlt"),
        "cost_step_us": max(_STEP_BLOCKS * cost.microseconds for cost in costs if cost.policy in POLICIES[1:]),
    }
    sizes: dict[str, Ratios] = {f"{share:.0%}": ratios for share, ratios in curve.items()}
    tables = [
        _hits("GSP, worst order, by cache size, % of one loop: hit ratio on vLLM's pool", {**sizes, "area": area}),
        _hits(f"Few-shot suites, cache {SUITE_ROOM:.0%}: hit ratio", suites),
        _over_lru(dict(zip(suites, hot, strict=True)) | {"multi-turn": hot_turns, "multi-turn, Rlt": rlt_turns}),
        _hits("Multi-turn, 200k tokens: hit ratio", {"hit ratio": turns}),
        _cost_table(costs),
    ]
    data = {"curve": {f"{share:.2f}": row for share, row in curve.items()}}
    return Report(keys, tables, lambda figure: _plot(figure, curve, {**suites, "multi-turn": turns}), data)


def _plot(figure: Any, curve: Mapping[float, Ratios], others: Mapping[str, Ratios]) -> None:
    left, right = figure.subplots(1, 2)
    for place, policy in enumerate(POLICIES):
        left.plot(list(curve), [fmean(ratios[policy]) for ratios in curve.values()], marker="o", label=policy)
        right.bar(
            [index + (place - 1) * 0.27 for index in range(len(others))],
            [fmean(ratios[policy]) for ratios in others.values()],
            width=0.27,
            label=policy,
        )
    left.set(xlabel="cache ÷ one loop", ylabel="hit ratio on vLLM's pool", title="GSP, worst order")
    left.legend()
    right.set_xticks(range(len(others)), list(others), rotation=20)
    right.set(title=f"few-shot suites ({SUITE_ROOM:.0%}), conversations")


def _hits(title: str, columns: Mapping[str, Ratios]) -> ResultTable:
    rows = [[policy, *(f"{fmean(ratios[policy]):.3f}" for ratios in columns.values())] for policy in POLICIES]
    return ResultTable(title, ["", *columns], rows)


def _over_lru(ratios: Mapping[str, PairedRatio]) -> ResultTable:
    rows = [[load, str(ratio)] for load, ratio in ratios.items()]
    return ResultTable("Hits ÷ LRU's, paired by seed; Hotness where nothing else is said", ["load", "÷ LRU"], rows)


def _cost_table(costs: Sequence[Cost]) -> ResultTable:
    rows = [
        [cost.load, cost.policy, f"{cost.microseconds:.2f}", str(cost.over), f"{_STEP_BLOCKS * cost.microseconds:.0f}"]
        for cost in costs
    ]
    notes = (
        "CPU time of lookup, allocation, caching, freeing and eviction in a full pool, a block allocated; ÷ vLLM's "
        f"own, paired. A step: {_STEP_BLOCKS} blocks, what 256 decoding requests take; 1 % of 10 ms is 100 µs."
    )
    columns = ["load", "", "µs a block", "÷ vLLM's own", "µs a step"]
    return ResultTable(f"Cost with {_COST_BLOCKS:,} blocks", columns, rows, notes)
