"""`defaults`: whether benchmarks measure what the default manifest deploys, and whether each field of the API has an
effect.

drift: settings in which a benchmark's ours differs from the default manifest. unnamed: those that are not named as part
of its experiment, or have no reason. unread: fields of InferencePool and InferenceGateway that change nothing that the
operator or local mode makes. copies: options whose default in a process's file or a constructor differs from the
manifest's. The target of each is 0. Pools of benchmarks that `plumage up` or the operator reads are not counted: their
manifests are beside them.
"""

from __future__ import annotations

from plumage_bench.benches.defaults.copies import second_copies
from plumage_bench.benches.defaults.drift import MEASURED, Override, drift, named, unnamed
from plumage_bench.benches.defaults.reading import unread
from plumage_bench.harness import Context, Report, ResultTable

__all__ = ["run"]


def run(context: Context) -> Report:
    """The four counts, a row for each mistake, and a row for each named difference."""
    mistakes = {"unnamed": unnamed(), "unread": unread(), "copies": second_copies()}
    rows: list[list[int | float | str]] = [[kind, line] for kind, lines in mistakes.items() for line in lines]
    table = ResultTable("Mistakes", ("key", "where"), rows, "Empty when all is as it must be.")
    found, overrides = {"drift": drift(), **mistakes}, named()
    differ = {"benchmarks": len(MEASURED), "differ": len({one.benchmark for one in overrides})}
    return Report(
        {**{kind: len(lines) for kind, lines in found.items()}, **differ},
        (table, _named(overrides)),
        data={**found, "named": [one._asdict() for one in overrides]},
    )


def _named(overrides: list[Override]) -> ResultTable:
    rows: list[list[int | float | str]] = [[one.benchmark, one.path, str(one.value), one.reason] for one in overrides]
    columns = ("benchmark", "spec.", "value", "because")
    return ResultTable("Settings in which ours differs from the default manifest", columns, rows)
