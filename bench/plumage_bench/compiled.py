"""Runs a benchmark with the compiled modules of router and engine, as the images have them.

The process compiles them into `build/compiled` (scripts/compile_modules.py) and replaces itself by the same command
there. Where they can not be compiled the sources run; a line before the run and the run's record say so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

import plumage.routing.lbgr
from plumage.errors import ConfigurationError
from plumage_bench.registry import Benchmark

__all__ = ["go_compiled", "is_compiled"]

_CHECKOUT = Path(__file__).parents[2]
_FOLDER = _CHECKOUT / "build" / "compiled"
_TRIED = "PLUMAGE_BENCH_COMPILED"


def is_compiled() -> bool:
    """Whether this process runs the compiled modules."""
    return not str(plumage.routing.lbgr.__file__).endswith(".py")


def go_compiled(benchmark: Benchmark, module: str, arguments: Sequence[str], console: Console) -> None:
    """Replace the process by `python -m module arguments` with the compiled modules, if the benchmark measures them.
    Returns if that is so already, or can not be. ConfigurationError if other modules come before them on the path."""
    if not benchmark.compiled:
        return
    before = _stamp()
    if subprocess.run(
        [_with_compiler(), _CHECKOUT / "scripts" / "compile_modules.py", _FOLDER], check=False
    ).returncode:
        console.print("[yellow]The sources run, slower than in the image: see above.[/yellow]")
        return
    here = Path(str(plumage.routing.lbgr.__file__)).is_relative_to(_FOLDER)
    if here and _stamp() == before:
        return
    if os.environ.get(_TRIED):
        raise ConfigurationError(
            f"other modules come before {_FOLDER}: unset PYTHONPATH, and run it from another folder"
        )
    path = os.environ.get("PYTHONPATH", "")
    os.environ |= {_TRIED: "1", "PYTHONPATH": path if here else str(_FOLDER) if not path else f"{_FOLDER}:{path}"}
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _with_compiler() -> str:
    """This Python if it has mypyc, else the developer's: vLLM's environment has none."""
    developers = _CHECKOUT / ".venv" / "bin" / "python"
    return str(developers) if find_spec("mypyc") is None and developers.exists() else sys.executable


def _stamp() -> str:
    """Names what the compiled modules were made of; empty without them."""
    stamp = _FOLDER / ".compiled"
    return stamp.read_text() if stamp.is_file() else ""
