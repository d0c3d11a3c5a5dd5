"""Long-document question answering: 512 documents of 1k to 8k tokens, all their questions (KVRouting App. A)."""

from __future__ import annotations

from dataclasses import replace

from plumage_bench.harness import Context, Report
from plumage_bench.routing.bench import RoutingWorkload, run_routing
from plumage_bench.routing.scenario import Scenario
from plumage_bench.workloads import LongdocShape

__all__ = ["run"]

_DEFAULT = Scenario(LongdocShape(), 12.0)
_DOCUMENTS, _DOCUMENTS_QUICK = 512, 320  # documents for four workers; both numbers exceed their caches


def _shape(factor: int) -> LongdocShape:
    return LongdocShape(documents=_DOCUMENTS * factor)


def _shape_quick(factor: int) -> LongdocShape:
    return LongdocShape(documents=_DOCUMENTS_QUICK * factor)


def _sweeps() -> dict[str, list[tuple[str, Scenario]]]:
    shape, default = LongdocShape(), _DEFAULT
    return {
        "requests a second": [(f"{rate}", default.at(rate)) for rate in (4, 6, 8, 12, 16, 20)],
        "workers": [(f"{workers}", replace(default, workers=workers)) for workers in (1, 2, 4, 6, 8, 10)],
        "documents": [
            (f"{count}", replace(default, shape=replace(shape, documents=count))) for count in (128, 256, 512)
        ],
        "order": [
            ("random", default),
            ("round robin over documents", replace(default, shape=replace(shape, round_robin=True))),
        ],
    }  # fmt: skip


def run(context: Context) -> Report:
    shape = _shape_quick if context.quick else _shape
    return run_routing(RoutingWorkload("longdoc", shape, 12.0, 5.0, _sweeps()), context)
