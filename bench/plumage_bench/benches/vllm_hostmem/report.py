"""The report of `vllm-hostmem`: ratios of pairs with their intervals, by suite and over all suites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from plumage_bench.harness import ResultTable
from plumage_bench.pairs import PairedRatio, paired_ratio
from plumage_engine.simulator.engine.device import GPU

__all__ = ["RATIOS", "Counted", "Found", "Load", "Ratio", "closing", "plot", "ratio", "ratios_table", "table"]

STEP_SECONDS = 0.010
_BLOCK_BYTES = 16 * GPU.kv_bytes_per_token
_LATENCY = 20e-6  # latency of a copy, of the virtual GPU's link
_BANDWIDTH = GPU.kv_bytes_per_token / GPU.first_read  # bandwidth of the device's memory


@dataclass(slots=True)
class Counted:
    """Prompt tokens: all, found on the device, found in host memory. Blocks copied to host memory, those of them in the
    last quarter of the questions, and the number of copies. Blocks copied to the device for requests, and by promotion;
    promoted ones that were used. CPU seconds of promotion, and of the store path."""

    prompt: int = 0
    device: int = 0
    host: int = 0
    stored: int = 0
    stored_late: int = 0
    copies: int = 0
    loaded: int = 0
    promoted: int = 0
    used: int = 0
    steps: int = 0
    promoting: float = 0.0
    storing: float = 0.0

    @property
    def device_ratio(self) -> float:
        return self.device / self.prompt

    @property
    def ratio(self) -> float:
        return (self.device + self.host) / self.prompt

    @property
    def link(self) -> float:
        """Seconds of the copies to host memory on the modelled link."""
        return self.copies * _LATENCY + GPU.copying(self.stored * _BLOCK_BYTES)

    @property
    def offloading(self) -> float:
        """Seconds of the link, and of the CPU for the store path."""
        return self.link + self.storing

    @property
    def serving(self) -> float:
        """Seconds of the device: 10 ms a step, and the time to compute missing prompt tokens."""
        return max(1, self.steps) * STEP_SECONDS + (self.prompt - self.device - self.host) * GPU.row

    @property
    def stretch(self) -> float:
        """The device's time with promotion ÷ the time without."""
        writing = self.promoted * _BLOCK_BYTES / _BANDWIDTH
        return 1.0 + (self.promoting + writing) / self.serving


@dataclass(frozen=True, slots=True)
class Load:
    """A suite, and the name of a `vllm_hostmem.Kind`."""

    suite: str
    kind: str

    @property
    def label(self) -> str:
        return f"{self.suite}, {self.kind}"


Found = dict[Load, dict[str, list[Counted]]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """`over` ÷ `under` in `what` of Counted, over the suites of some kinds."""

    over: str
    under: str
    what: str
    kinds: tuple[str, ...]


_EVEN, _ZIPF, _BOTH = ("even",), ("zipf",), ("even", "zipf")
RATIOS: Mapping[str, Ratio] = {
    "bytes_ratio": Ratio("all", "A 2", "stored", ("copies",)),
    "time_ratio": Ratio("all", "A 2", "offloading", ("copies",)),
    "link_ratio": Ratio("all", "A 2", "link", ("copies",)),
    "hits_kept": Ratio("A 2", "all", "ratio", ("copies",)),
    "over_threshold": Ratio("A 2, half", "threshold 2, half", "ratio", ("half",)),
    "threshold_bytes": Ratio("threshold 2, half", "A 2, half", "stored", ("half",)),
    "lookahead_gain": Ratio("A+lookahead", "lru", "device_ratio", _EVEN),
    "lookahead_e_gain": Ratio("E+A+lookahead", "lru", "device_ratio", _EVEN),
    "lookahead_gain_zipf": Ratio("A+lookahead", "lru", "device_ratio", _ZIPF),
    "lookahead_e_gain_zipf": Ratio("E+A+lookahead", "lru", "device_ratio", _ZIPF),
    "hotness_gain": Ratio("A+P hotness", "lru", "device_ratio", _EVEN),
    "hotness_gain_zipf": Ratio("A+P hotness", "lru", "device_ratio", _ZIPF),
    "over_recency": Ratio("A+P hotness", "A+P recency", "device_ratio", _ZIPF),
    "over_frequency": Ratio("A+P hotness", "A+P frequency", "device_ratio", _ZIPF),
    "over_depth": Ratio("A+P hotness", "A+P depth", "device_ratio", _ZIPF),
    "again": Ratio("A+lookahead again", "A+lookahead", "device_ratio", _EVEN),
}
_POOLED = ("over_recency", "over_frequency", "over_depth", "again")
"""The closing line has the mean of these over all suites, and the worst suite of the others."""


def ratio(found: Found, one: Ratio, suite: str | None = None) -> PairedRatio:
    """Over all pairs of a suite, or of all suites."""
    loads = [rows for load, rows in found.items() if load.kind in one.kinds and suite in (None, load.suite)]
    over = [float(getattr(counted, one.what)) for rows in loads for counted in rows[one.over]]
    under = [float(getattr(counted, one.what)) for rows in loads for counted in rows[one.under]]
    return paired_ratio(over, under)


def _played(found: Found) -> dict[str, Ratio]:
    """The ratios of the kinds that ran."""
    kinds = {load.kind for load in found}
    return {name: one for name, one in RATIOS.items() if kinds.issuperset(one.kinds)}


def _suites(found: Found) -> list[str]:
    return list(dict.fromkeys(load.suite for load in found))


def stretch(counted: Sequence[Counted]) -> PairedRatio:
    """Steps with promotion ÷ steps without. The interval is over the seeds."""
    return paired_ratio([one.stretch for one in counted], [1.0] * len(counted))


def closing(found: Found) -> dict[str, float]:
    """The closing line: the worst suite, with the smallest lower bound of all. hit_loss: 1 − hits_kept. pairs: the
    largest number of pairs of any ratio."""
    keys: dict[str, float] = {}
    played = _played(found)
    for name, one in played.items():
        each = [ratio(found, one)] if name in _POOLED else [ratio(found, one, suite) for suite in _suites(found)]
        keys |= {name: min(found.ratio for found in each), f"{name}_low": min(found.low for found in each)}
        keys[f"{name}_pairs"] = min(found.pairs for found in each)
    if "again" in played:
        keys["again_high"] = ratio(found, RATIOS["again"]).high
    if "hits_kept" in played:
        keys |= {"hit_loss": 1.0 - keys.pop("hits_kept"), "hit_loss_high": 1.0 - keys.pop("hits_kept_low")}
        keys["hit_loss_pairs"] = keys.pop("hits_kept_pairs")
    if stretches := [stretch(rows["A+lookahead"]) for load, rows in found.items() if load.kind in _BOTH]:
        keys |= {
            "decode_slowdown": max(one.ratio for one in stretches) - 1.0,
            "decode_slowdown_high": max(one.high for one in stretches) - 1.0,
            "decode_slowdown_pairs": min(one.pairs for one in stretches),
        }
    pairs = max((ratio(found, one).pairs for one in played.values()), default=0)
    return {key: round(value, 4) for key, value in keys.items()} | {"pairs": pairs}


def ratios_table(found: Found) -> ResultTable:
    """Each ratio by suite, and over all pairs."""
    suites = _suites(found)
    rows = [
        [name, *(_shown(ratio(found, one, suite)) for suite in suites), str(ratio(found, one))]
        for name, one in _played(found).items()
    ]
    notes = (
        "Geometric means of pairs, with their 95 % interval or, of fewer than five, their range. hits_kept: selective "
        "÷ everything. again: A+lookahead with another seed."
    )
    return ResultTable("Ratios", ("", *suites, "all"), rows, notes)


def _shown(found: PairedRatio) -> str:
    return f"{found.ratio:.3f} ({found.spread}: {found.low:.3f} to {found.high:.3f})"


def table(load: Load, rows: Mapping[str, Sequence[Counted]]) -> ResultTable:
    """Means over the seeds of all counts."""
    blocks = ("stored", "stored_late", "loaded", "promoted", "used")
    shown: list[list[int | float | str]] = [
        [
            name,
            len(counted),
            *(round(fmean(getattr(one, what) for one in counted), 4) for what in ("device_ratio", "ratio")),
            *(round(fmean(getattr(one, what) for one in counted)) for what in blocks),
            *(round(fmean(getattr(one, what) for one in counted), 3) for what in ("link", "storing")),
            round(1e6 * fmean(one.promoting / max(1, one.steps) for one in counted), 1),
        ]
        for name, counted in rows.items()
    ]
    columns = ("contender", "seeds", "device hits", "all hits", "stored", "stored late", "loaded", "promoted", "used",
               "link s", "storing s", "promoting µs a step")  # fmt: skip
    notes = "Hits: share of prompt tokens. Stored (late: in the last quarter), loaded, promoted, used: blocks."
    return ResultTable(load.label, columns, shown, notes)


def plot(figure: Any, found: Found) -> None:
    """Ratios by suite with their intervals: savings of offloading, and hits."""
    left, right = figure.subplots(1, 2)
    names = {
        left: ("bytes_ratio", "time_ratio", "link_ratio"),
        right: (
            "hits_kept",
            "over_threshold",
            "lookahead_gain",
            "lookahead_e_gain",
            "lookahead_gain_zipf",
            "lookahead_e_gain_zipf",
            "again",
        ),
    }
    for axes, wanted in names.items():
        shown = [name for name in wanted if name in _played(found)]
        for number, suite in enumerate(_suites(found)):
            each = [ratio(found, RATIOS[name], suite) for name in shown]
            errors = [[one.ratio - one.low for one in each], [one.high - one.ratio for one in each]]
            places = [place + 0.15 * (number - 1.5) for place in range(len(shown))]
            axes.errorbar(places, [one.ratio for one in each], errors, fmt="o", markersize=4, capsize=2, label=suite)
        axes.set_xticks(range(len(shown)), shown, rotation=40, ha="right", fontsize=8)
    left.set(title="everything ÷ selective", yscale="log")
    left.axhline(10.0, color="black", linewidth=0.5)
    right.set_title("hits")
    right.axhline(1.0, color="black", linewidth=0.5)
    right.legend(fontsize=8)
