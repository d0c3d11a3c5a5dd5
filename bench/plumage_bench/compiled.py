"""Runs a benchmark of the router with its compiled modules, as the image has them.

The process compiles them into `build/compiled` (scripts/compile_modules.py) and replaces itself by the same command
there. Where they can not be compiled the sources run; the run's record and its last lines say so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import plumage.routing.lbgr
from plumage_bench.registry import Benchmark

__all__ = ["go_compiled", "is_compiled"]

_CHECKOUT = Path(__file__).parents[2]
_FOLDER = _CHECKOUT / "build" / "compiled"


def is_compiled() -> bool:
    """Whether this process runs the compiled modules."""
    return not str(plumage.routing.lbgr.__file__).endswith(".py")


def go_compiled(benchmark: Benchmark, module: str, arguments: Sequence[str], console: Console) -> None:
    """Replace the process by `python -m module arguments` with the compiled modules, if the benchmark measures them.
    Returns if that is so already, or can not be."""
    if not benchmark.compiled or is_compiled():
        return
    script = _CHECKOUT / "scripts" / "compile_modules.py"
    if subprocess.run([sys.executable, script, _FOLDER], check=False).returncode:
        console.print("[yellow]The router runs from its sources, slower than in the image: see above.[/yellow]")
        return
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{_FOLDER}:{path}" if path else str(_FOLDER)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
