"""`plumage bench eviction`: compares the hit ratios of eviction policies on the papers' workloads and worst cases.

Every figure is a mean over seeds. Comparisons are paired by seed. Belady (leaf-OPT) is shown as the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from plumage_bench.benches.eviction.adversary import Construction, harmonic, measure
from plumage_bench.benches.eviction.figures import draw
from plumage_bench.benches.eviction.replay import policy_for, replay
from plumage_bench.benches.eviction.workloads import (
    BLOCK,
    SUITE_BATCH,
    Workload,
    few_shot,
    gsp_loop_blocks,
    gsp_worst_order,
    multi_turn,
)  # fmt: skip
from plumage_bench.harness import Context, Report, ResultTable

__all__ = ["run"]

TEXTBOOK = ("Lfu", "Fifo", "TwoQ", "Ttl", "Arc", "S3Fifo", "Sieve", "MarconiOffload", "Evoke")
POLICIES = ("Lru", "Rlt", "RltCode", "Hotness", "HotnessPaper", *TEXTBOOK, "Belady")
DRAWING = ("Rlt", "RltCode", "HotnessPaper")  # policies with random choices: of victims, or of entries in a full bucket
TOKENS_200K = 200_000 // BLOCK
LOOP_SHARES = (0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95)
QUICK_SHARES = LOOP_SHARES[1::2]
SUITE_ROOM = 0.95
OTHER_ROOMS = (0.8, 0.9, 1.0)
TURN_SEEDS = 12
"""Seeds of conversations differ by more than policies do. They are cheap, so there are many."""

Ratios = Mapping[str, float]
Advance = Callable[[int], None]


def run(context: Context) -> Report:
    seeds = [context.seed + offset for offset in range(3 if context.quick else 8)]
    sizes = (8, 16, 32, 64) if context.quick else (8, 16, 32, 64, 128, 256)
    rooms = (SUITE_ROOM,) if context.quick else (*OTHER_ROOMS, SUITE_ROOM)
    shares = QUICK_SHARES if context.quick else LOOP_SHARES
    steps = len(shares) + 1 + len(rooms) * len(SUITE_BATCH) + 1 + len(sizes)
    with context.progress("eviction", steps) as advance:
        curve = [_gsp(int(gsp_loop_blocks() * share), seeds, advance) for share in shares]
        at_200k = _gsp(TOKENS_200K, seeds, advance)
        suites = {room: _suites(room, seeds, advance) for room in rooms}
        many = [context.seed + offset for offset in range(TURN_SEEDS)]
        turns = _mean(lambda seed: multi_turn(seed, TOKENS_200K), POLICIES, many, advance)
        worst = [_construction(n, seeds, advance) for n in sizes]
    return _report(seeds, dict(zip(shares, curve, strict=True)), at_200k, suites, turns, worst)


def _gsp(capacity: int, seeds: Sequence[int], advance: Advance) -> Ratios:
    """The order is fixed, so only policies with random choices run with every seed."""
    once = _mean(lambda seed: gsp_worst_order(seed, capacity), [p for p in POLICIES if p not in DRAWING], seeds[:1])
    drawn = _mean(lambda seed: gsp_worst_order(seed, capacity), DRAWING, seeds, advance)
    return {policy: {**once, **drawn}[policy] for policy in POLICIES}


def _suites(room: float, seeds: Sequence[int], advance: Advance) -> dict[str, Ratios]:
    return {
        suite: _mean(lambda seed, suite=suite: few_shot(seed, suite, room), POLICIES, seeds, advance)  # type: ignore[misc]
        for suite in SUITE_BATCH
    }


def _mean(
    make: Callable[[int], Workload], policies: Sequence[str], seeds: Sequence[int], advance: Advance | None = None
) -> Ratios:
    """Mean hit ratio of each policy, all of them on the same workload of each seed."""
    works = [(seed, make(seed)) for seed in seeds]
    ratios = {
        policy: fmean(replay(work, policy_for(policy, work, seed)).hit_ratio for seed, work in works)
        for policy in policies
    }
    if advance is not None:
        advance(1)
    return ratios


def _construction(n: int, seeds: Sequence[int], advance: Advance) -> Construction:
    runs = [measure(n, seed) for seed in seeds]
    advance(1)
    return Construction(
        n,
        fmean(run.loop_lru for run in runs),
        fmean(run.loop_rlt for run in runs),
        fmean(run.random_lru for run in runs),
        fmean(run.random_rlt for run in runs),
    )


def _report(
    seeds: Sequence[int],
    curve: Mapping[float, Ratios],
    at_200k: Ratios,
    suites: Mapping[float, Mapping[str, Ratios]],
    turns: Ratios,
    worst: Sequence[Construction],
) -> Report:
    main = suites[SUITE_ROOM]
    means = {policy: fmean(ratios[policy] for ratios in main.values()) for policy in POLICIES}
    compared = {**main, "multi-turn": turns}
    area = {policy: fmean(ratios[policy] for ratios in curve.values()) for policy in POLICIES}
    keys = {
        "rlt_at_200k": at_200k["Rlt"],
        "lru_at_200k": at_200k["Lru"],
        "rlt_area": area["Rlt"],
        "lru_area": area["Lru"],
        "hotness_over_lru": min(ratios["Hotness"] / ratios["Lru"] for ratios in main.values()),
        # The target names no size, so the worst of all sizes counts too. A cache that has room for everything evicts
        # nothing.
        "hotness_over_lru_any_room": min(
            ratios["Hotness"] / ratios["Lru"] for room, of in suites.items() if room < 1 for ratios in of.values()
        ),
        "hotness_over_textbook": means["Hotness"] / max(means[policy] for policy in TEXTBOOK),
        "multiturn_over_textbook": turns["Hotness"] / max(turns[policy] for policy in TEXTBOOK),
        "multiturn_hotness": turns["Hotness"] / turns["Lru"],
        "multiturn_rlt": turns["Rlt"] / turns["Lru"],
        "c1_lru_per_n": worst[-1].loop_lru / worst[-1].n,
        "c2_rlt_per_log_n": worst[-1].random_rlt / harmonic(worst[-1].n),
    }
    tables = [
        _gsp_table(curve, area, at_200k),
        *(_suite_table(room, ratios) for room, ratios in suites.items()),
        _ratio_table(f"Multi-turn, 128 clients, 200k tokens, {TURN_SEEDS} seeds", {"hit ratio": turns}),
        _ratio_table("Hit ratio ÷ leaf-LRU's", {name: _over(ratios) for name, ratios in compared.items()}),
        _worst_table(worst),
    ]
    curves = {
        policy: [ratios[policy] for ratios in curve.values()] for policy in ("Lru", "Rlt", "Hotness", "Arc", "Belady")
    }
    shown = ("Rlt", "Hotness", "HotnessPaper", "TwoQ", "Arc", "S3Fifo", "Sieve", "Belady")
    gains = {name: {policy: _over(ratios)[policy] for policy in shown} for name, ratios in compared.items()}
    data: dict[str, Any] = {
        "seeds": list(seeds),
        "curve": {f"{share:.2f}": row for share, row in curve.items()},
        "means": means,
    }
    return Report(keys, tables, lambda figure: draw(figure, list(curve), curves, gains), data)


def _over(ratios: Ratios) -> Ratios:
    return {policy: ratio / ratios["Lru"] for policy, ratio in ratios.items()}


def _ratio_table(title: str, columns: Mapping[str, Ratios], notes: str = "") -> ResultTable:
    """A row for each policy, a column for each setting."""
    rows = [[policy, *(f"{ratios[policy]:.3f}" for ratios in columns.values())] for policy in POLICIES]
    return ResultTable(title, ["", *columns], rows, notes)


def _gsp_table(curve: Mapping[float, Ratios], area: Ratios, at_200k: Ratios) -> ResultTable:
    columns: dict[str, Ratios] = {f"{share:.0%}": row for share, row in curve.items() if share in QUICK_SHARES}
    columns |= {"area": area, "200k": at_200k}
    loop = gsp_loop_blocks() * BLOCK
    notes = (
        f"64 groups × 32, by cache size, % of one loop = {loop:,} tokens. Leaf-LRU jumps from 0 to the maximum where "
        "the loop fits into the cache, so areas are compared. Where one is 0 a ratio to it is undefined."
    )
    return _ratio_table("GSP, worst order: hit ratio", columns, notes)


def _suite_table(room: float, suites: Mapping[str, Ratios]) -> ResultTable:
    columns: dict[str, Ratios] = dict(suites)
    columns["mean"] = {policy: fmean(ratios[policy] for ratios in suites.values()) for policy in POLICIES}
    return _ratio_table(f"Few-shot suites, cache {room:.0%} of all prefixes and a batch: hit ratio", columns)


def _worst_table(worst: Sequence[Construction]) -> ResultTable:
    columns = ["n", "C.1 LRU", "C.1 RLT", "C.2 LRU", "C.2 RLT", "H(n)"]
    rows = [[c.n, c.loop_lru, c.loop_rlt, c.random_lru, c.random_rlt, harmonic(c.n)] for c in worst]
    return ResultTable("Misses ÷ leaf-OPT's, KVRouting App. C", columns, rows, "C.1: O(n), O(log n). C.2: H(n).")
