"""`plumage bench NAME`. Benchmarks are part of the repository but not of the package, so they may be missing."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import typer

from plumage_cli.errors import CliError

__all__ = ["app"]

_LAB = "plumage_bench"
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}

absent = typer.Typer(rich_markup_mode=None, add_completion=False)


@absent.command(context_settings=_ANYTHING)
def bench(context: typer.Context) -> None:
    """Benchmarks run only from a clone of the repository."""
    raise CliError(
        "benchmarks are not in the package; clone Plumage's repository, run `make setup` there, and then "
        "`.venv/bin/plumage bench NAME`"
    )


def _find() -> Any:
    """The command of the benchmarks, or one that explains how to get them."""
    return absent if find_spec(_LAB) is None else importlib.import_module(f"{_LAB}.command").app


app = _find()
