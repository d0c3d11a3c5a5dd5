"""The tables and the plot of the routing benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from plumage_bench.harness import ResultTable
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_bench.routing.contenders import AGAIN, CACHE_AWARE, EVICTIONS, MATRIX, OURS, Contender
from plumage_bench.routing.crossing import Curve, rate_ratio
from plumage_bench.routing.scenario import Figures

__all__ = [
    "Cell",
    "Rates",
    "decay_table",
    "equal_keys",
    "equal_table",
    "finals_table",
    "matrix_table",
    "plot_rates",
    "rate_keys",
    "rate_table",
    "setting_keys",
    "setting_table",
    "sweep_table",
    "verdict",
]

Cell = tuple[int, str]  # workers, device

_NO_RATE = "no rate"
_COLUMNS = (
    "hit ratio", "req/s", "TTFT P50 s", "P95", "P99", "end-to-end P50 s", "P95", "P99", "balance CV", "MUV",
)  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """The highest rates: by cell, by contender, one for each seed. finals: the curves of contenders that may be the
    fastest, on other seeds; empty in a quick run. floors: rates below which there was no search."""

    cells: Mapping[Cell, Mapping[Contender, Sequence[float]]]
    ours: Contender
    finals: Mapping[Cell, Mapping[Contender, Curve]] = field(default_factory=dict)
    floors: Mapping[Cell, float] = field(default_factory=dict)

    @property
    def baselines(self) -> list[Contender]:
        """All contenders but the forms of our own routing, which is ranked among them."""
        first = next(iter(self.cells.values()))
        return [contender for contender in first if contender.policy != self.ours.policy]

    def reached(self, cell: Cell) -> bool:
        """Whether anyone keeps the limit at any rate. Otherwise each search ends at its lowest rate, and a ratio of two
        such rates is 1 and means nothing."""
        if finals := self.finals.get(cell):
            return any(curve.reached for curve in finals.values())
        rates = [rate for found in self.cells[cell].values() for rate in found]
        return min(rates) < max(rates)

    @property
    def judged(self) -> list[Cell]:
        """The cells that count in a figure."""
        return [cell for cell in self.cells if self.reached(cell)]

    def mean(self, cell: Cell, contender: Contender) -> float:
        final = self.finals.get(cell, {}).get(contender)
        return final.rate if final else geometric_mean(self.cells[cell][contender])

    def shown(self, cell: Cell, contender: Contender) -> float | str:
        """The rate as text, or that it is not higher than the floor."""
        mean, floor = self.mean(cell, contender), self.floors.get(cell, 0.0)
        return f"≤ {floor:.4g}" if mean <= floor and contender not in self.finals.get(cell, {}) else mean

    def ratio(self, cell: Cell, baseline: Contender) -> float:
        """Ours ÷ baseline: from the second round if both were in it, otherwise seed by seed, averaged."""
        finals = self.finals.get(cell, {})
        if baseline in finals:
            return finals[self.ours].rate / finals[baseline].rate
        own, other = self.cells[cell][self.ours], self.cells[cell][baseline]
        return geometric_mean([mine / theirs for mine, theirs in zip(own, other, strict=True)])

    def interval(self, cell: Cell, ours: Contender, baseline: Contender) -> PairedRatio:
        """Ours ÷ baseline with its interval: from the second round if both were in it, otherwise seed by seed."""
        finals = self.finals.get(cell, {})
        if ours in finals and baseline in finals:
            return rate_ratio(finals[ours], finals[baseline])
        return paired_ratio(self.cells[cell][ours], self.cells[cell][baseline])

    def equals(self, cell: Cell) -> dict[str, tuple[Contender, PairedRatio]]:
        """By eviction, the best baseline with it, and ours with it ÷ that baseline."""
        found, finals = {}, self.finals.get(cell, {})
        for eviction in EVICTIONS:
            baselines = [one for one in self.baselines if one.eviction == eviction and (not finals or one in finals)]
            ratios = {one: self.interval(cell, self.ours.over(eviction), one) for one in baselines}
            best = min(ratios, key=lambda one: ratios[one].ratio)
            found[eviction] = best, ratios[best]
        return found

    def again(self, cell: Cell) -> PairedRatio:
        """Ours ÷ ours on other seeds."""
        return self.interval(cell, self.ours, AGAIN)

    def over(self, cell: Cell, baselines: Sequence[Contender]) -> float:
        """Ours ÷ the best of the baselines; from the second round alone if there was one."""
        finals = self.finals.get(cell)
        return min(self.ratio(cell, baseline) for baseline in baselines if not finals or baseline in finals)

    def plain(self) -> dict[str, Any]:
        return {
            f"{workers} workers, {device}": {contender.label: list(rates) for contender, rates in found.items()}
            for (workers, device), found in self.cells.items()
        }

    def plain_finals(self) -> dict[str, Any]:
        """Each seed's share of late requests, by cell, contender and rate."""
        return {
            f"{workers} workers, {device}": {contender.label: curve.plain() for contender, curve in found.items()}
            for (workers, device), found in self.finals.items()
        }


def _row(label: str, figures: Figures) -> list[float | str]:
    times = [figures.ttft_at(share) for share in (0.5, 0.95, 0.99)]
    times += [figures.latency_at(share) for share in (0.5, 0.95, 0.99)]
    return [label, figures.hit_ratio, figures.throughput, *times, figures.balance, figures.muv]


def setting_table(name: str, rate: float, figures: Mapping[Contender, Figures]) -> ResultTable:
    """All contenders in the default setting, the shortest median TTFT first."""
    ordered = sorted(figures, key=lambda contender: figures[contender].ttft_at(0.5))
    return ResultTable(
        f"{name}: 4 workers, {rate:g} requests a second, 200k tokens of cache each",
        ("routing", *_COLUMNS),
        [_row(contender.label, figures[contender]) for contender in ordered],
        "The eviction is named after the routing. A modelled device: no gain here is a gain on a real one.",
    )


def matrix_table(figures: Mapping[Contender, Figures]) -> ResultTable:
    """The table of routing × eviction. A note names rows where eviction makes no difference."""
    return ResultTable(
        "{cache-aware, LBGR} × {LRU, RLT, hotness}, the same setting",
        ("routing + eviction", *_COLUMNS),
        [_row(contender.label, figures[contender]) for contender in MATRIX],
        _alike(figures),
    )


def _alike(figures: Mapping[Contender, Figures]) -> str:
    """A note about routings whose rows are equal in every digit."""
    rows: dict[str, set[tuple[float | str, ...]]] = {}
    for contender in MATRIX:
        rows.setdefault(contender.routing, set()).add(tuple(_row("", figures[contender])))
    alike = [name for name, found in rows.items() if len(found) == 1]
    if not alike:
        return ""
    reason = "caches are hardly full here, so the rows do not compare eviction."
    return f"The rows of {' and '.join(alike)} are equal in every digit: {reason}"


def rate_table(rates: Rates) -> ResultTable:
    """Rows: contenders, by their rate in the first cell."""
    first = next(iter(rates.cells))
    ordered = sorted(rates.cells[first], key=lambda contender: -rates.mean(first, contender))
    rows: list[list[float | str]] = [
        [contender.label, *(rates.shown(cell, contender) for cell in rates.cells)] for contender in ordered
    ]
    for label, baselines in ((CACHE_AWARE.label, [CACHE_AWARE]), ("best other", rates.baselines)):
        ratios = [rates.over(cell, baselines) if rates.reached(cell) else _NO_RATE for cell in rates.cells]
        rows.append([f"{OURS.label} ÷ {label}", *ratios])
    return ResultTable(
        "Highest requests a second with P95 TTFT under 2 s",
        ("routing", *(f"{workers} workers, {device}" for workers, device in rates.cells)),
        rows,
        "Contenders near the best: all requests of other seeds together. The others: rough geometric means of seeds."
        if rates.finals
        else "Geometric means over the seeds; ratios are taken seed by seed.",
    )


def finals_table(rates: Rates) -> ResultTable:
    """Ours ÷ each baseline of the second round, with its interval."""
    rows: list[list[float | str]] = []
    for (workers, device), found in rates.finals.items():
        if not rates.reached((workers, device)):
            continue
        ours = found[rates.ours]
        ratios = {baseline: rate_ratio(ours, curve) for baseline, curve in found.items() if baseline in rates.baselines}
        rows += [
            [f"{workers} workers, {device}", baseline.label, ours.rate, found[baseline].rate, ratio.ratio, ratio.low,
             ratio.high, ratio.pairs]
            for baseline, ratio in sorted(ratios.items(), key=lambda item: item[1].ratio)
        ]  # fmt: skip
    return ResultTable(
        f"{rates.ours.label} against those who may be first, on seeds that did not choose them",
        ("fleet", "baseline", "ours, req/s", "baseline", "ours ÷ baseline", "low", "high", "seeds"),
        rows,
        "low, high: 95 % interval from five seeds on. The least of several ratios is by chance below their true least.",
    )


def verdict(ratio: PairedRatio) -> str:
    """first or behind if the whole interval shows it; tie if the interval contains 1."""
    if ratio.low >= 1.0:
        return "first"
    return "tie" if ratio.high >= 1.0 else "behind"


def equal_keys(rates: Rates) -> dict[str, float | str]:
    """rank_equal: ours ÷ the best other with the same eviction, the smallest of evictions and cells; with the lowest
    lower bound of all, and the upper bound of that ratio. aa: ours ÷ ours on other seeds in its cell. rank_verdict: see
    `verdict`; it changes no target. Cells in which nobody keeps the limit are left out; {} if there is no other."""
    ratios = [(ratio, cell) for cell in rates.judged for _, ratio in rates.equals(cell).values()]
    if not ratios:
        return {}
    least, cell = min(ratios, key=lambda one: one[0].ratio)
    again = rates.again(cell)
    return {
        "rank_equal": least.ratio,
        "rank_equal_low": min(ratio.low for ratio, _ in ratios),
        "rank_equal_high": least.high,
        "aa": again.ratio,
        "aa_low": again.low,
        "aa_high": again.high,
        "pairs": least.pairs,
        "rank_verdict": verdict(least),
    }


def rate_keys(rates: Rates) -> dict[str, float]:
    """products_rank and rate_gain, the smallest of the cells, as in `equal_keys`. unreached: the cells left out."""
    products = [baseline for baseline in rates.baselines if baseline.eviction == "Lru"]
    by_name = {"products_rank": products, "rate_gain": [CACHE_AWARE]}
    found = {name: [rates.over(cell, of) for cell in rates.judged] for name, of in by_name.items()}
    least = {name: min(ratios) for name, ratios in found.items() if ratios}
    return {**least, "unreached": len(rates.cells) - len(rates.judged)}


def equal_table(rates: Rates) -> ResultTable:
    """Ours and the best baseline with each eviction."""
    rows: list[list[float | str]] = []
    for workers, device in rates.cells:
        cell, again = (workers, device), rates.again((workers, device))
        for eviction, (best, ratio) in rates.equals(cell).items():
            own = rates.mean(cell, rates.ours.over(eviction))
            rows.append([
                f"{workers} workers, {device}", eviction, best.routing, own, rates.mean(cell, best), ratio.ratio,
                ratio.low, ratio.high, ratio.pairs, str(again), verdict(ratio) if rates.reached(cell) else _NO_RATE,
            ])  # fmt: skip
    columns = ("fleet", "eviction", "best baseline", "ours, req/s", "baseline", "ours ÷ baseline", "low", "high",
               "seeds", "ours ÷ ours, other seeds", "verdict")  # fmt: skip
    notes = (
        "Everyone over the same eviction. low, high: 95 % interval from five seeds on, else the range. tie: the "
        "interval contains 1. no rate: nobody keeps the limit at any rate, so no figure counts the fleet. Ours on "
        "other seeds has other prompts and arrivals, so it is no pair of ours."
    )
    return ResultTable("Routing at equal eviction", columns, rows, notes)


def setting_keys(figures: Mapping[Contender, Figures]) -> dict[str, float]:
    """In the default setting, ours ÷ the best other with the same eviction, the worse of the evictions: requests a
    second (more is better), time to first token at P50 and P95 (less is better)."""
    over: dict[str, list[float]] = {"throughput": [], "p50": [], "p95": []}
    for eviction in EVICTIONS:
        own = figures[OURS.over(eviction)]
        others = [found for one, found in figures.items() if one.eviction == eviction and one.policy != OURS.policy]
        over["throughput"].append(own.throughput / max(one.throughput for one in others))
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            over[name].append(own.ttft_at(share) / min(one.ttft_at(share) for one in others))
    return {
        "setting_throughput_over_best": min(over["throughput"]),
        "setting_p50_over_best": max(over["p50"]),
        "setting_p95_over_best": max(over["p95"]),
    }


def decay_table(figures: Mapping[Contender, Figures]) -> ResultTable:
    """The forms of LBGR whose W decays, by the interval, and ours."""
    return ResultTable(
        "Sweep: decay interval of W (31/32 each), the default setting",
        ("routing", *_COLUMNS),
        [_row(contender.label, found) for contender, found in figures.items()],
        "Our W drains continuously instead.",
    )


def sweep_table(parameter: str, rows: Sequence[tuple[str, Mapping[Contender, Figures]]]) -> ResultTable:
    """The two contenders while one parameter varies."""
    shown: list[list[float | str]] = []
    for label, figures in rows:
        theirs, ours = figures[CACHE_AWARE], figures[OURS]
        medians, tails = (theirs.ttft_at(0.5), ours.ttft_at(0.5)), (theirs.ttft_at(0.95), ours.ttft_at(0.95))
        gain = medians[0] / medians[1]
        shown.append([label, theirs.hit_ratio, ours.hit_ratio, *medians, *tails, gain])
    columns = (
        "hit, cache-aware",
        "hit, ours",
        "P50, cache-aware",
        "P50, ours",
        "P95, cache-aware",
        "P95, ours",
        "P50 gain",
    )
    return ResultTable(f"Sweep: {parameter}", (parameter, *columns), shown)


def plot_rates(figure: Any, name: str, rates: Rates) -> None:
    """Bars of the highest rates relative to ours, one group for each cell."""
    axes = figure.add_subplot()
    cells = list(rates.cells)
    contenders = sorted(rates.cells[cells[0]], key=lambda contender: -rates.mean(cells[0], contender))
    height = 0.8 / len(cells)
    for index, cell in enumerate(cells):
        best = rates.mean(cell, rates.ours)
        places = [position + index * height for position in range(len(contenders))]
        values = [rates.mean(cell, contender) / best for contender in contenders]
        axes.barh(places, values, height, label=f"{cell[0]} workers, {cell[1]}")
    axes.set_yticks([position + 0.4 - height / 2 for position in range(len(contenders))])
    axes.set_yticklabels([contender.label for contender in contenders])
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("highest rate with P95 TTFT < 2 s, relative to ours")
    axes.set_title(name)
    axes.tick_params(axis="y", labelsize="x-small")
    axes.legend(fontsize="small")
