"""Compare two commits by one benchmark, in pairs: `python -m plumage_bench.compare COMMIT NAME --lower KEY`.

The runs alternate between this checkout and the other commit, which gets a temporary git worktree. Both use this
Python and its packages. A ratio above 1 says that this checkout is better: `--lower` names figures that are better
when lower, `--higher` the others. The record `<out>/compare-NAME.json` has all ratios with their intervals.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from plumage.errors import ConfigurationError
from plumage_bench.harness import interval_keys
from plumage_bench.pairs import LEAST_PAIRS, PairedRatio, paired_ratio
from plumage_bench.registry import describe
from plumage_bench.runner import machine, versions

__all__ = ["app", "order_of_runs", "ratio_of", "source_path"]

CHECKOUT = Path(__file__).parents[2]
SOURCES = ("core", "router", "engine", "operator", "cli", "bench")
_RUN_LIMIT = 3600.0  # seconds

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def compare(
    commit: Annotated[str, typer.Argument(help="The other commit, for example the one before a change.")],
    name: Annotated[str, typer.Argument(help="Which benchmark.")],
    options: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Its own options.")] = None,
    lower: Annotated[list[str] | None, typer.Option(help="A figure that is better when lower.")] = None,
    higher: Annotated[list[str] | None, typer.Option(help="A figure that is better when higher.")] = None,
    pairs: Annotated[int, typer.Option(min=1, max=100, help="How many pairs of runs.")] = LEAST_PAIRS,
    quick: Annotated[bool, typer.Option("--quick", help="The benchmark's quick run.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the first pair; each pair has the next one.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the JSON.")] = Path("out/bench"),
) -> None:
    """Run a benchmark on this checkout and on another commit, in turn, and print the ratios of their figures."""
    describe(name)
    figures = dict.fromkeys(lower or (), True) | dict.fromkeys(higher or (), False)
    if not figures:
        raise ConfigurationError("name the figures to compare, e.g. --lower mean_us_4; the closing line has all")
    words = [name, *(["--quick"] if quick else []), *(options or [])]
    started = time.perf_counter()
    before: list[Mapping[str, Any]] = []
    after: list[Mapping[str, Any]] = []
    with _worktree(commit) as other:
        for number, (first, second) in enumerate(order_of_runs(pairs, after, before)):
            for runs in (first, second):
                typer.echo(f"pair {number + 1} of {pairs}: {'before' if runs is before else 'after'} runs")
                runs.append(_run(other if runs is before else CHECKOUT, [*words, "--seed", str(seed + number)]))
            _check(figures, before[-1], after[-1])
            shown = ", ".join(f"{key} {before[-1][key]:.4g} → {after[-1][key]:.4g}" for key in figures)
            typer.echo(f"pair {number + 1} of {pairs}: {shown}")
    ratios = {key: ratio_of(key, before, after, lower=is_lower) for key, is_lower in figures.items()}
    record = {
        "benchmark": f"compare-{name}",
        "command": shlex.join(["python", "-m", "plumage_bench.compare", *_without_folder(sys.argv[1:])]),
        "quick": quick,
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 3),
        "machine": machine(),
        "versions": versions(),
        "before": _git("rev-parse", "--short=10", commit),
        "commit": _git("rev-parse", "--short=10", "HEAD") + "+" * bool(_git("status", "--porcelain", "-uno")),
        "date": datetime.now(UTC).date().isoformat(),
        "keys": {key: value for figure, one in ratios.items() for key, value in interval_keys(figure, one).items()},
        "data": {"before": before, "after": after},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / f"compare-{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    for key, ratio in ratios.items():
        typer.echo(f"{name} {key}: {ratio} of {record['before']}; above 1 is better")


def _without_folder(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without `--out`, which changes no figure and may be a path of one machine."""
    left = iter(arguments)
    for one in left:
        if one == "--out":
            next(left, None)
        elif not one.startswith("--out="):
            yield one


def order_of_runs(
    pairs: int, after: list[Mapping[str, Any]], before: list[Mapping[str, Any]]
) -> Iterator[tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]]:
    """Which of the two runs first in each pair. They take turns, so that a drift of the machine favours neither."""
    for number in range(pairs):
        yield (after, before) if number % 2 else (before, after)


def ratio_of(
    key: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], *, lower: bool
) -> PairedRatio:
    """How much better `after` is by a figure: above 1 where it is better. ValueError if a figure is not above 0."""
    old, new = [float(run[key]) for run in before], [float(run[key]) for run in after]
    return paired_ratio(old, new) if lower else paired_ratio(new, old)


def source_path(tree: Path) -> str:
    """PYTHONPATH that makes Python import the packages of `tree`."""
    return os.pathsep.join(str(tree / source) for source in SOURCES)


def _check(figures: Mapping[str, bool], *runs: Mapping[str, Any]) -> None:
    for run in runs:
        if unknown := [key for key in figures if not isinstance(run.get(key), int | float) or run[key] <= 0]:
            known = ", ".join(key for key, value in run.items() if isinstance(value, int | float) and value > 0)
            raise ConfigurationError(f"no figure above 0 is called {', '.join(unknown)} in both; there are: {known}")


def _run(tree: Path, words: Sequence[str]) -> Mapping[str, Any]:
    """The figures of one run of `plumage bench` with the code of `tree`."""
    environment = os.environ | {"PYTHONPATH": source_path(tree)}
    environment.setdefault("VLLM_VENV", str(CHECKOUT / ".venv-vllm"))
    with TemporaryDirectory() as out:
        command = [sys.executable, "-m", "plumage_cli", "bench", *words, "--out", out]
        try:
            run = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_RUN_LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            error = f"{shlex.join(words)} took over {_RUN_LIMIT:.0f} s: choose a smaller run, such as --quick"
            raise ConfigurationError(error) from None
        if run.returncode:
            raise ConfigurationError(f"{shlex.join(words)} failed at {tree.name}:\n{run.stdout[-2000:]}{run.stderr}")
        keys: Mapping[str, Any] = json.loads((Path(out) / f"{words[0]}.json").read_text())["keys"]
        return keys


@contextmanager
def _worktree(commit: str) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        _git("worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    run = subprocess.run(
        ["git", "-C", str(CHECKOUT), *words], capture_output=True, text=True, timeout=120.0, check=False
    )
    if run.returncode:
        raise ConfigurationError(f"git {words[0]} failed: {run.stderr.strip()}")
    return run.stdout.strip()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an error it also removes the worktree
    try:
        app()
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
