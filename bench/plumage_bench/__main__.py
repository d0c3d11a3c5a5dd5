"""`python -m plumage_bench NAME [--quick] [--seed N] [--out DIR] [--device D] [key=value …]`, the same as `plumage
bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from plumage.errors import PlumageError
from plumage_bench.beside_vllm import go_where_it_runs
from plumage_bench.compiled import go_compiled
from plumage_bench.device import CPU, DEVICES
from plumage_bench.harness import Context, wide_console
from plumage_bench.registry import NAMES, describe, load
from plumage_bench.runner import run_benchmark


def main(argv: list[str] | None = None) -> int:
    """Parse the arguments and run the benchmark. Returns the exit status: 2 for a mistake of the caller."""
    parser = argparse.ArgumentParser(prog="plumage bench", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="a shorter run; says what it left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    parser.add_argument("--device", choices=DEVICES, default=CPU)
    parser.add_argument("options", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args(argv)
    console = wide_console()
    try:
        given = sys.argv[1:] if argv is None else argv
        device = go_where_it_runs(describe(args.name), args.device, "plumage_bench", given)
        run = load(args.name)
        go_compiled(describe(args.name), "plumage_bench", given, console)
        options = dict(item.split("=", 1) for item in args.options)
        context = Context(args.name, args.quick, args.seed, args.out, console, options, device)
        run_benchmark(describe(args.name), run, context)
    except PlumageError as error:
        console.print(f"[red]error:[/red] {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
