"""The figures of `quality`: of a run, and of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean
from typing import Any, Final

from plumage_bench.benches.quality.load import Sent
from plumage_bench.harness import Figure, Report, ResultTable, interval_keys, least_keys
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_bench.quantiles import quantile

__all__ = ["OURS", "ROUND_ROBIN", "Found", "Served", "make_report", "ranks", "sum_up"]

OURS: Final = "Plumage, Lbgr"
ROUND_ROBIN: Final = "round robin"
_FILLING: Final = 0.2  # share of the requests that fill the caches and do not count
_LATE: Final = 0.1  # of P95
_FIELDS: Final = ("p50", "p95", "mean", "rate", "hits", "router_cores")


@dataclass(frozen=True, slots=True)
class Served:
    """The figures of one run. Times are modelled seconds: to the first token, and P99 of the delay of sending. rate:
    answered requests a second. hits: cached ÷ prompt tokens. cpu: share of all cores that the run's processes used.
    router_cores: cores that the router used."""

    p50: float
    p95: float
    mean: float
    rate: float
    hits: float
    late: float
    cpu: float
    router_cores: float
    requests: int
    failed: int
    why: str = ""

    @property
    def is_late(self) -> bool:
        return self.late > _LATE * self.p95


Found = dict[tuple[str, str, int], Served]
"""By workload, contender and pair."""
Ranked = Mapping[str, tuple[str, PairedRatio]]
"""By workload: the best peer, and `ranks`."""


def sum_up(sent: Sequence[Sent], limit: float, *, cpu: float, router_cores: float) -> Served:
    """sent: in the order of arrival. A failed request counts as one with its first token after `limit` seconds."""
    counted = sent[int(_FILLING * len(sent)) :]
    ttft = [limit if one.failed or one.ttft is None else one.ttft for one in counted]
    answered = [one for one in counted if one.ended is not None]
    until = max((one.due + (one.ended or 0.0) for one in answered), default=counted[0].due)
    return Served(
        quantile(ttft, 0.5),
        quantile(ttft, 0.95),
        fmean(ttft),
        len(answered) / max(until - counted[0].due, 1e-9),
        sum(one.cached for one in counted) / max(1, sum(one.prompt for one in counted)),
        quantile([one.late for one in counted], 0.99),
        cpu,
        router_cores,
        len(counted),
        sum(bool(one.failed) for one in sent),
        next((one.failed for one in sent if one.failed), ""),
    )


def ranks(found: Found, name: str) -> tuple[str, PairedRatio]:
    """The best peer of a workload, and P95 of the time to first token, its ÷ ours."""
    ours = _of(found, name, OURS)
    peers = {who: _of(found, name, who) for case, who, _ in found if case == name and who not in (OURS, ROUND_ROBIN)}
    best = min(peers, key=lambda who: geometric_mean([one.p95 for one in peers[who]]))
    return best, _over(peers[best], ours)


def make_report(found: Found, names: Sequence[str], missing: Sequence[str], *, real_time: bool) -> Report:
    """missing: peers that are not installed. real_time: whether the processes ran at that priority."""
    ranked = {name: ranks(found, name) for name in names}
    notes = (
        "Means of the pairs; round robin has the first pair only. Processes ran at "
        f"{'real-time' if real_time else 'ordinary'} priority.{''.join(f' Not installed: {one}.' for one in missing)}"
    )
    data = [{"workload": name, "router": who, "pair": pair, **asdict(one)} for (name, who, pair), one in found.items()]
    tables = [_ranks_table(ranked), *(_table(found, name, notes) for name in names)]
    return Report(_keys(found, ranked), tables, lambda figure: _plot(figure, found, names), {"runs": data})


def _keys(found: Found, ranked: Ranked) -> dict[str, Figure]:
    keys = least_keys("rank_min", [ratio for _, ratio in ranked.values()])
    for name, (_, ratio) in ranked.items():
        keys |= interval_keys(f"rank_{name}", ratio)
    return {
        **keys,
        "late_runs": sum(one.is_late for one in found.values()),
        "failed": sum(one.failed for (_, who, _), one in found.items() if who == OURS),
        "peers_failed": sum(one.failed for (_, who, _), one in found.items() if who != OURS),
        "cpu_most": round(max(one.cpu for one in found.values()), 3),
    }


def _of(found: Found, name: str, who: str) -> list[Served]:
    """The runs of a contender, in the order of the pairs."""
    return [one for (case, contender, _), one in sorted(found.items()) if case == name and contender == who]


def _over(peer: Sequence[Served], ours: Sequence[Served]) -> PairedRatio:
    return paired_ratio([one.p95 for one in peer], [one.p95 for one in ours[: len(peer)]])


def _ranks_table(ranked: Ranked) -> ResultTable:
    rows = [
        (name, best, round(ratio.ratio, 3), round(ratio.low, 3), round(ratio.high, 3), ratio.pairs)
        for name, (best, ratio) in ranked.items()
    ]
    return ResultTable(
        "P95 of the time to first token, the best peer's ÷ ours",
        ("workload", "best peer", "rank", "low", "high", "pairs"),
        rows,
        "Above 1, ours is better. low, high: 95 % interval from five pairs on, else the range.",
    )


def _table(found: Found, name: str, notes: str) -> ResultTable:
    ours = _of(found, name, OURS)
    rows: list[list[Figure]] = []
    for who in dict.fromkeys(who for case, who, _ in found if case == name):
        runs = _of(found, name, who)
        means = [round(fmean(getattr(one, field) for one in runs), 3) for field in _FIELDS]
        late, failed = sum(one.is_late for one in runs), sum(one.failed for one in runs)
        rows.append([who, *means, str(_over(runs, ours)), late, failed])
    rows.sort(key=lambda row: float(row[2]))
    columns = ("router", "P50 TTFT, s", "P95 TTFT, s", "mean TTFT, s", "req/s", "hit ratio", "router's cores",
               "P95 ÷ ours", "late runs", "failed")  # fmt: skip
    return ResultTable(f"{name}: four simulated engines, modelled seconds", columns, rows, notes)


def _plot(figure: Any, found: Found, names: Sequence[str]) -> None:
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for panel, name in zip(panels, names, strict=True):
        contenders = list(dict.fromkeys(who for case, who, _ in found if case == name))
        for place, who in enumerate(contenders):
            values = [one.p95 for one in _of(found, name, who)]
            panel.plot([place] * len(values), values, "o", color="C0" if who == OURS else "C1")
        panel.set_xticks(range(len(contenders)), contenders, rotation=90, fontsize="x-small")
        panel.set(title=name, yscale="log")
    panels[0].set_ylabel("P95 of the time to first token, modelled s")
