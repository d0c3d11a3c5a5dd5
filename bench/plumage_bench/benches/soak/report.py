"""What a soak found: its figures, tables and plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plumage_bench.benches.soak.load import Load
from plumage_bench.benches.soak.observer import Sample, left_over, slope_in
from plumage_bench.benches.soak.pages import REQUESTS, STORES, sum_of
from plumage_bench.benches.soak.process_sizes import ProcessSize
from plumage_bench.benches.soak.restarts import JUDGED, Restart
from plumage_bench.benches.soak.slope import Slope
from plumage_bench.harness import Figure, Report, ResultTable

__all__ = ["Extent", "SoakRun", "report"]

_MB: Final = 1e6
_KINDS: Final = ("files", "sockets", "tasks")
_RECORDED: Final = 120  # samples in the record
_MOST_TRACEBACKS: Final = 20  # in the record


@dataclass(frozen=True, slots=True)
class Extent:
    """seconds: of the load. every: seconds between samples. restarts_every: seconds between restarts of those engines
    and agents that are restarted until the end. rest: seconds after the load until the level at rest is taken. fill:
    requests that fill the largest stores. flat: the share by which memory may grow."""

    seconds: float
    every: float
    restarts_every: float
    rest: float
    fill: int
    flat: float


@dataclass(slots=True)
class SoakRun:
    """The data for the report.

    idle, ended: samples at rest, before and after the load. unasked: ends of processes that the bench did not ask for.
    tracebacks: their texts, from the logs. not_filled: requests of `Extent.fill` that were not sent. status: the
    supervisor's.
    """

    extent: Extent
    load: Load
    samples: Sequence[Sample]
    idle: Sequence[Sample]
    ended: Sequence[Sample]
    restarts: Sequence[Restart]
    unasked: int
    tracebacks: Sequence[str]
    not_filled: int
    well: bool
    log: str
    status: int = 0

    def slopes(self) -> dict[str, Slope | None]:
        """By process; None if it could not be judged."""
        seconds = self.extent.seconds
        parts = {name: (start * seconds, end * seconds) for name, (start, end) in JUDGED.items()}
        return {name: slope_in(self.samples, name, *part) for name, part in parts.items()}

    def left(self) -> dict[str, int]:
        """Of files, sockets, tasks and entries."""
        found = Counter(dict.fromkeys((*_KINDS, "entries"), 0))
        for (_, what), more in left_over(self.idle, self.ended).items():
            found[what if what in _KINDS else "entries"] += more
        return found


def report(done: SoakRun) -> Report:
    slopes, left, extent = done.slopes(), done.left(), done.extent
    known = {name: slope for name, slope in slopes.items() if slope is not None}
    keys: dict[str, Figure] = {
        "rss_grown": sum(slope.grows(extent.flat) for slope in known.values()),
        "not_judged": len(slopes) - len(known),
        **{f"{what}_left": count for what, count in left.items()},
    }
    for role in ("router", "engine", "agent", "directory", "supervisor"):
        keys |= _slope_keys(role, known)
    keys |= {
        "crashes": done.unasked + len(done.tracebacks),
        "not_filled": done.not_filled,
        "well_again": int(done.well and done.status == 0),
        "restarts": len(done.restarts),
        "requests": done.load.requests,
        "seconds": round(extent.seconds),
    }
    tables = [_memory_table(done, slopes), _rest_table(done), _store_table(done), _outcome_table(done)]
    data = {
        "memory_mb": _recorded(done.samples, lambda size: round(size.resident / _MB, 2)),
        "anonymous_mb": _recorded(done.samples, lambda size: round(size.anonymous / _MB, 2)),
        "files": _recorded(done.samples, lambda size: size.files),
        "left": {f"{name}: {what}": more for (name, what), more in left_over(done.idle, done.ended).items()},
        "restarts": [f"{one.at:.1f} {one.name}{' by SIGKILL' if one.kill else ''}" for one in done.restarts],
        "unasked": done.unasked, "tracebacks": done.tracebacks[:_MOST_TRACEBACKS],
        "log": done.log.splitlines()[-200:],
    }  # fmt: skip
    return Report(keys, tables, lambda figure: _plot(figure, done), data)


def _slope_keys(role: str, known: Mapping[str, Slope]) -> dict[str, Figure]:
    """In MB an hour, of the role's process that most certainly grows."""
    slopes = [slope for name, slope in known.items() if name.partition(" ")[0] == role]
    if not slopes:
        return {}
    worst = max(slopes, key=lambda slope: slope.growth(slope.low))
    name = f"rss_slope_{role}"
    return {name: worst.per_hour / _MB, f"{name}_low": worst.low / _MB, f"{name}_high": worst.high / _MB}


def _memory_table(done: SoakRun, slopes: Mapping[str, Slope | None]) -> ResultTable:
    rows: list[Sequence[Figure]] = []
    for name, slope in slopes.items():
        if slope is None:
            rows.append((name, "–", "–", "–", "–", "–", "not judged"))
            continue
        hourly = [round(one / _MB, 2) for one in (slope.per_hour, slope.low, slope.high)]
        share = f"{100 * slope.growth(slope.per_hour):.2f} %, from {100 * slope.growth(slope.low):.2f} %"
        verdict = "grows" if slope.grows(done.extent.flat) else "flat"
        rows.append((name, f"{slope.mean / _MB:.1f}", hourly[0], f"{hourly[1]} to {hourly[2]}", share,
                     f"{slope.seconds:.0f}", verdict))  # fmt: skip
    each = _bytes_a_request(done, slopes.get("router"))
    return ResultTable(
        "Resident memory",
        ("process", "MB", "MB an hour", "95 %", "growth in the window", "seconds", "verdict"),
        rows,
        f"Grows: the interval's lower end is above {100 * done.extent.flat:g} % of the memory over the window.{each}",
    )


def _bytes_a_request(done: SoakRun, router: Slope | None) -> str:
    """What the limit is for the router."""
    start, end = (part * done.extent.seconds for part in JUDGED["router"])
    counts = [sum_of(one.pages.get("router", {}), REQUESTS) for one in done.samples if start <= one.at <= end]
    known = [count for count in counts if count is not None]
    requests = known[-1] - known[0] if known else 0.0
    if router is None or requests <= 0:
        return ""
    return f" Of the router that is {done.extent.flat * router.mean / requests:.0f} bytes a request."


def _rest_table(done: SoakRun) -> ResultTable:
    """All processes: what they have at rest, before and after."""
    rows: list[Sequence[Figure]] = []
    first, last = done.idle[-1], done.ended[-1]
    for name in sorted(last.sizes):
        after, before = last.sizes[name], first.sizes.get(name)
        levels = [one.levels().get((name, "tasks")) for one in (first, last)]
        tasks = " → ".join("–" if level is None else f"{level:.0f}" for level in levels)
        if before is not None:
            rows.append((name, f"{before.files} → {after.files}", f"{_sockets(before.sockets)} → "
                         f"{_sockets(after.sockets)}", f"{before.threads} → {after.threads}", tasks))  # fmt: skip
    left = [f"{name}: {what} {more}" for (name, what), more in left_over(done.idle, done.ended).items()]
    return ResultTable(
        "At rest, before → after the load",
        ("process", "files", "sockets", "threads", "tasks"),
        rows,
        f"Left over: {'; '.join(left) or 'nothing'}.",
    )


def _sockets(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "0"


def _store_table(done: SoakRun) -> ResultTable:
    """Sizes of the stores with a bound, which may be full but must not grow on."""
    half = [one for one in done.samples if one.at >= done.extent.seconds / 2]
    columns = [done.idle[-1], *half[:1], done.ended[-1]]
    rows: list[Sequence[Figure]] = []
    for name in STORES:
        values = [_total(one, name) for one in columns]
        rows.append((name, *values))
    return ResultTable("Entries of bounded stores", ("store", "before", *["at half"] * len(half[:1]), "after"), rows)


def _total(sample: Sample, name: str) -> Figure:
    values = [value for page in sample.pages.values() if (value := sum_of(page, name)) is not None]
    return round(sum(values)) if values else "–"


def _outcome_table(done: SoakRun) -> ResultTable:
    rows = [(kind, outcome, count) for (kind, outcome), count in sorted(done.load.outcomes.items())]
    return ResultTable("What became of each client's turns", ("client", "outcome", "count"), rows)


def _recorded(samples: Sequence[Sample], what: Callable[[ProcessSize], float]) -> dict[str, str]:
    """By process, `SECOND FIGURE` of some of the samples: lists would be a line for each figure in the record."""
    some = samples[:: max(1, len(samples) // _RECORDED)]
    names = sorted({name for one in some for name in one.sizes})
    return {name: ", ".join(f"{at:.0f} {what(size)}" for at, size in _series(some, name)) for name in names}


def _plot(figure: Any, done: SoakRun) -> None:
    """Memory and descriptors in time, with a mark for each restart."""
    memory, files = figure.subplots(2, 1, sharex=True)
    names = sorted({name for one in done.samples for name in one.sizes})
    for name in names:
        dashed = {"linestyle": "-" if name in JUDGED else ":", "linewidth": 1.0}
        times, sizes = zip(*_series(done.samples, name), strict=True)
        memory.plot(times, [size.resident / _MB for size in sizes], label=name, **dashed)
        files.plot(times, [size.files for size in sizes], **dashed)
    colours = {"router": "red", "directory": "black"}
    for one in done.restarts:
        for axes in (memory, files):
            axes.axvline(one.at, color=colours.get(one.name, "lightgrey"), linewidth=0.4)
    memory.set_ylabel("resident memory, MB")
    files.set_ylabel("open descriptors")
    files.set_xlabel("seconds; a line for each restart: red the router, black the directory")
    memory.legend(fontsize=6, ncols=4)


def _series(samples: Sequence[Sample], name: str) -> Iterator[tuple[float, ProcessSize]]:
    return ((one.at, one.sizes[name]) for one in samples if name in one.sizes)
