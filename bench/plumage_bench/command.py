"""The command `plumage bench NAME`. The CLI finds it by the name of this module."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from plumage_bench.registry import BENCHMARKS, Benchmark, describe, load
from plumage_cli.errors import CliError

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class _BenchCommand(TyperCommand):
    """`bench --help` lists all benchmarks. `bench NAME --help` shows what one measures, its options and its time
    limit."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = next((arg for arg in args if not arg.startswith("-")), None)
        if named is not None and {"--help", "-h"} & set(args):
            typer.echo(_about(named))
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Names"):
            formatter.write_dl([(name, benchmark.summary) for name, benchmark in BENCHMARKS.items()])
        formatter.write_text(
            "plumage bench NAME --help shows what it measures, its options and what --quick leaves out."
        )


@app.command(cls=_BenchCommand)
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which benchmark.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="The benchmark's own options.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run within its quick budget.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the JSON and the plot.")] = Path("out/bench"),
    trace: Annotated[
        Path | None, typer.Option(help="A JSONL file in Mooncake's format, for benchmarks that replay a trace.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu or cuda, for benchmarks that compute on a device; their --help says so.")
    ] = "cpu",
    sweep: Annotated[
        bool, typer.Option("--sweep", help="After the default setting, also run the whole ranges.")
    ] = False,
) -> None:
    """Run a benchmark: table, JSON, plot, and a closing line `NAME key=value …`."""
    benchmark = describe(name)
    given = _options(options or [])
    if trace is not None:
        given["trace"] = str(trace)
    if sweep:
        given["sweep"] = "1"
    known = dict(benchmark.options)
    if unknown := sorted(set(given) - set(known)):
        there = ", ".join(known) or "none"
        raise CliError(f"bench {name} has no option {', '.join(unknown)}; its options: {there}")
    used = _device(benchmark, device)
    if find_spec("matplotlib") is None:  # checked now: it is imported after the run
        raise ModuleNotFoundError(name="matplotlib")
    from plumage_bench.compiled import go_compiled
    from plumage_bench.harness import Context, wide_console
    from plumage_bench.runner import run_benchmark

    run = load(name)  # before it compiles for a minute: it imports what may be missing
    go_compiled(benchmark, "plumage_cli", sys.argv[1:], wide_console())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an error it also ends started processes
    _writable(out)
    run_benchmark(benchmark, run, Context(name, quick, seed, out, wide_console(), given, used))


def _device(benchmark: Benchmark, device: str) -> str:
    """The device for the run, in a Python that has what the benchmark needs."""
    from plumage_bench.beside_vllm import go_where_it_runs
    from plumage_bench.device import CPU, DEVICES

    if device not in DEVICES:
        raise CliError(f"--device {device}: there are: {', '.join(DEVICES)}")
    used = go_where_it_runs(benchmark, device, "plumage_cli", sys.argv[1:])
    if device != CPU and used == CPU:
        typer.echo(f"bench {benchmark.name} computes on no device, so --device {device} changes nothing", err=True)
    return used


def _writable(out: Path) -> None:
    """Checked before the run, which may take minutes."""
    from tempfile import NamedTemporaryFile

    try:
        out.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=out):
            pass
    except OSError as error:
        raise CliError(f"can't write results to {out}: {error.strerror}; choose another folder with --out") from None


def _options(words: list[str]) -> dict[str, str]:
    given = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise CliError(f"an option is KEY=VALUE, got {word!r}")
        given[key] = value
    return given


def _about(name: str) -> str:
    benchmark = describe(name)
    lines = [
        f"Usage: plumage bench {name} [--quick] [--seed N] [--out DIR] [KEY=VALUE]…",
        "",
        f"  {benchmark.summary}",
        "",
        f"  --quick takes at most {benchmark.quick_budget} s and leaves out: {benchmark.quick_omits}",
    ]
    if benchmark.on_device:
        lines += ["", "  --device cuda runs it on a GPU, in the virtual environment that VLLM_VENV names."]
    if benchmark.options:
        lines += ["", "Options:"] + [f"  {key}=…  {text}" for key, text in benchmark.options]
    return "\n".join(lines)
