"""`defaults`: whether benchmarks measure what the default manifest deploys, and whether each field of the API has an
effect.

drift: settings in which a benchmark's contender differs from the default manifest without being named as part of its
experiment. unread: fields of InferencePool and InferenceGateway that change nothing that the operator or local mode
makes. copies: options whose default in a process's file or a constructor differs from the manifest's. All must be 0.
"""

from __future__ import annotations

from typing import Any

from plumage_bench.benches.defaults.copies import second_copies
from plumage_bench.benches.defaults.drift import MEASURED, drift, overrides
from plumage_bench.benches.defaults.reading import unread
from plumage_bench.harness import Context, Report, ResultTable

__all__ = ["run"]


def run(context: Context) -> Report:
    """The three counts, and a row for each finding."""
    found = {"drift": drift(), "unread": unread(), "copies": second_copies()}
    rows: list[list[int | float | str]] = [[kind, line] for kind, lines in found.items() for line in lines]
    table = ResultTable("Defaults", ("key", "where"), rows, "Empty when all is as it must be.")
    return Report(
        {kind: len(lines) for kind, lines in found.items()}, (table, _named()), data={**found, "named": _named_by()}
    )


def _named() -> ResultTable:
    rows: list[list[int | float | str]] = [
        [name, path, str(value)] for name, said in _named_by().items() for path, value in said.items()
    ]
    return ResultTable("What an experiment sets of ours", ("benchmark", "spec.", "value"), rows)


def _named_by() -> dict[str, dict[str, Any]]:
    return {name: overrides(name) for name in MEASURED}
