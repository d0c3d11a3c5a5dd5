"""The interface of a benchmark: the context that it gets and the report that it returns.

A benchmark is a module with a `run(context)` that returns a `Report`. `registry.py` names and describes them,
`runner.py` runs one. A figure KEY that was measured in pairs comes with KEY_low, KEY_high and KEY_pairs
(`interval_keys`), which docs/evidence.md reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from plumage.errors import ConfigurationError
from plumage_bench.device import CPU
from plumage_bench.pairs import PairedRatio

__all__ = [
    "Context",
    "Figure",
    "Report",
    "ResultTable",
    "Run",
    "interval_keys",
    "least_keys",
    "wide_console",
]

Figure = int | float | str
_LINE_SECONDS = 30.0


@dataclass(slots=True)
class Context:
    """What a run is given. `options` holds the extra options by name, e.g. {"trace": "path", "sweep": "1"}. device: of
    `plumage_bench.device`, for benchmarks that compute on one."""

    name: str
    quick: bool
    seed: int
    out: Path
    console: Console
    options: Mapping[str, str] = field(default_factory=dict)
    device: str = CPU

    def switch(self, option: str) -> bool:
        """Whether an option that takes 0 or 1, and is 0 when not given, is on; ConfigurationError for another value."""
        given = self.options.get(option, "0")
        if given not in ("0", "1"):
            raise ConfigurationError(f"{option}={given}: must be 0 or 1")
        return given == "1"

    def count(self, option: str, default: int, most: int = 100) -> int:
        """An option that is a whole number from 1 to `most`; ConfigurationError for anything else."""
        given = self.options.get(option, str(default))
        if not (given.isascii() and given.isdecimal()) or not 1 <= int(given[:9]) <= most:
            raise ConfigurationError(f"{option}={given}: must be from 1 to {most}")
        return int(given)

    def some(self, option: str, of: Sequence[str], default: Sequence[str] | None = None) -> tuple[str, ...]:
        """An option that names some of `of`, a semicolon between two; `default`, or all of them, when it is not given.
        ConfigurationError for a name that is none."""
        given = self.options.get(option)
        if given is None:
            return tuple(of if default is None else default)
        if unknown := set(given.split(";")) - set(of):
            raise ConfigurationError(f"{option}: there is no {min(unknown)!r}; there are: {'; '.join(of)}")
        return tuple(one for one in of if one in given.split(";"))

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar, or, where nobody could see it move, a line each tenth of a long run; call the yielded
        function with the number of units done since the last call."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        lines = _lines(self.console, description, total)
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(description, total=total)

            def advance(done: int) -> None:
                bar.advance(task, done)
                lines(done)

            yield advance


def _lines(console: Console, description: str, total: int) -> Callable[[int], None]:
    """Says how far a run is, into a file or a pipe: at each tenth, but twice a minute at most."""
    started = printed_at = time.perf_counter()
    reached = printed = 0

    def advance(done: int) -> None:
        nonlocal reached, printed, printed_at
        reached += done
        now = time.perf_counter()
        if console.is_terminal or 10 * (reached - printed) < total or now - printed_at < _LINE_SECONDS:
            return
        printed, printed_at = reached, now
        console.print(f"{description}: {reached} of {total} after {now - started:.0f} s", highlight=False)

    return advance


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table as shown and as written. notes: what the reader must know to read it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Figure]]
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """keys: the closing line's figures, in order. plot: draws on a fresh matplotlib figure. data: raw figures."""

    keys: Mapping[str, Figure]
    tables: Sequence[ResultTable] = ()
    plot: Callable[[Any], None] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


Run = Callable[[Context], Report]


def interval_keys(name: str, ratio: PairedRatio) -> dict[str, Figure]:
    """A paired figure as keys of the closing line: the figure, both ends, and the pairs behind them."""
    return {name: ratio.ratio, f"{name}_low": ratio.low, f"{name}_high": ratio.high, f"{name}_pairs": ratio.pairs}


def least_keys(name: str, ratios: Sequence[PairedRatio]) -> dict[str, Figure]:
    """The least of several paired figures, with its own interval."""
    return interval_keys(name, min(ratios, key=lambda one: one.ratio))


def wide_console() -> Console:
    """A console for results. Into a file or a pipe it is wide: a table cut at 80 columns has lost its figures."""
    console = Console()
    return console if console.is_terminal else Console(width=180)
