"""The interface of a benchmark: the context that it gets and the report that it returns.

A benchmark is a module with a `run(context)` that returns a `Report`. `registry.py` names and describes benchmarks,
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
    """The settings of a run. `options` has the extra options by name, e.g. {"trace": "path", "sweep": "1"}. device: of
    `plumage_bench.device`, for benchmarks that compute on one."""

    name: str
    quick: bool
    seed: int
    out: Path
    console: Console
    options: Mapping[str, str] = field(default_factory=dict)
    device: str = CPU

    def switch(self, option: str) -> bool:
        """Whether an option is on that takes 0 or 1; its default is 0. ConfigurationError for another value."""
        given = self.options.get(option, "0")
        if given not in ("0", "1"):
            raise ConfigurationError(f"{option}={given}: must be 0 or 1")
        return given == "1"

    def count(self, option: str, default: int, most: int = 100) -> int:
        """An option that is an integer from 1 to `most`. ConfigurationError for any other value."""
        given = self.options.get(option, str(default))
        if not (given.isascii() and given.isdecimal()) or not 1 <= int(given[:9]) <= most:
            raise ConfigurationError(f"{option}={given}: must be from 1 to {most}")
        return int(given)

    def some(self, option: str, of: Sequence[str], default: Sequence[str] | None = None) -> tuple[str, ...]:
        """An option that names some of `of`, separated by semicolons. Without the option `default`, or all of them.
        ConfigurationError for an unknown name."""
        given = self.options.get(option)
        if given is None:
            return tuple(of if default is None else default)
        if unknown := set(given.split(";")) - set(of):
            raise ConfigurationError(f"{option}: there is no {min(unknown)!r}; there are: {'; '.join(of)}")
        return tuple(one for one in of if one in given.split(";"))

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar in a terminal, otherwise a line for each tenth of a long run. Call the yielded function with
        the number of units done since the last call."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        lines = _lines(self.console, description, total)
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(description, total=total)

            def advance(done: int) -> None:
                bar.advance(task, done)
                lines(done)

            yield advance


def _lines(console: Console, description: str, total: int) -> Callable[[int], None]:
    """Prints progress to a file or pipe: at each tenth, but at most twice a minute."""
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
    """A table, printed and written to JSON. notes: what readers must know to interpret it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Figure]]
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """keys: the closing line's figures, in order. plot: draws on a new matplotlib figure. data: raw figures."""

    keys: Mapping[str, Figure]
    tables: Sequence[ResultTable] = ()
    plot: Callable[[Any], None] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


Run = Callable[[Context], Report]


def interval_keys(name: str, ratio: PairedRatio) -> dict[str, Figure]:
    """A paired figure as keys of the closing line: the figure, both ends of its interval, and the number of pairs."""
    return {name: ratio.ratio, f"{name}_low": ratio.low, f"{name}_high": ratio.high, f"{name}_pairs": ratio.pairs}


def least_keys(name: str, ratios: Sequence[PairedRatio]) -> dict[str, Figure]:
    """The smallest of several paired figures, with its own interval."""
    return interval_keys(name, min(ratios, key=lambda one: one.ratio))


def wide_console() -> Console:
    """A console for results. In a file or pipe it is wide, since a table that is cut at 80 columns would lose
    figures."""
    console = Console()
    return console if console.is_terminal else Console(width=180)
