"""Generated shared prefix: KVRouting's synthetic workload and main table."""

from __future__ import annotations

from dataclasses import replace

from plumage_bench.harness import Context, Report
from plumage_bench.routing.bench import RoutingWorkload, run_routing
from plumage_bench.routing.scenario import Scenario
from plumage_bench.workloads import ArticleKind, ArticleShape, GspShape

__all__ = ["run"]

_DEFAULT = Scenario(GspShape(), 12.0)
# Requests a second that load four workers without overloading them.
_ARTICLE: tuple[tuple[ArticleKind, float], ...] = (
    ("rag", 12.0), ("code", 40.0), ("agents", 12.0), ("summaries", 4.0), ("mix", 10.0),
)  # fmt: skip


def _shape(factor: int) -> GspShape:
    return GspShape(groups=128 * factor)


def _sweeps() -> dict[str, list[tuple[str, Scenario]]]:
    shape, default = GspShape(), _DEFAULT
    working_set = int(sum(shape.lengths) / len(shape.lengths) * shape.groups)
    return {
        "requests a second": [(f"{rate}", default.at(rate)) for rate in (4, 8, 12, 16, 20)],
        "workers": [(f"{workers}", replace(default, workers=workers)) for workers in (1, 2, 4, 6, 8, 10)],
        "shared ratio": [(f"{r}", replace(default, shape=replace(shape, shared=r))) for r in (0.3, 0.5, 0.7, 0.9)],
        "queries a group": [
            (f"{count}", replace(default, shape=replace(shape, queries=count))) for count in (4, 8, 16, 32, 64, 128)
        ],
        "output tokens": [
            (f"{count}", replace(default, shape=replace(shape, output_tokens=count))) for count in (4, 16, 64, 128)
        ],
        "share of answers of 128 tokens in one piece": [
            (f"{share}", replace(default, rate=8.0, shape=replace(shape, output_tokens=128), in_one_piece=share))
            for share in (0.0, 0.5, 1.0)
        ],
        "cache, % of all prompts once": [
            (f"{share}", replace(default, cache_tokens=working_set * share // 100)) for share in (50, 60, 70, 80, 90)
        ],
        "cache, % of 200k tokens": [
            (f"{share}", replace(default, cache_tokens=2000 * share)) for share in (50, 60, 70, 80, 90, 100)
        ],
        "running at most": [(f"{limit}", replace(default, max_num_seqs=limit)) for limit in (1, 4, 16, 64)],
        "order": [
            ("random", default), ("round robin over groups", replace(default, shape=replace(shape, round_robin=True))),
        ],
        "the article's workloads": [(kind, Scenario(ArticleShape(kind), rate)) for kind, rate in _ARTICLE],
    }  # fmt: skip


def run(context: Context) -> Report:
    return run_routing(RoutingWorkload("gsp", _shape, 12.0, 8.0, _sweeps()), context)
