"""Few-shot suites with HotPrefix's shapes. The closing line has MMLU; the sweep has all four."""

from __future__ import annotations

from dataclasses import replace

from plumage_bench.harness import Context, Report
from plumage_bench.routing.bench import RoutingWorkload, run_routing
from plumage_bench.routing.scenario import Scenario
from plumage_bench.workloads import FEWSHOT_SUITES, FewshotShape

__all__ = ["run"]

_MMLU = FEWSHOT_SUITES["mmlu"]
_DEFAULT_RATE = 150.0  # half of what four workers can do with a warm cache; no paper has a rate for a routed fleet
_DEFAULT = Scenario(_MMLU, _DEFAULT_RATE)


def _shape(factor: int) -> FewshotShape:
    return replace(_MMLU, subjects=_MMLU.subjects * factor, questions=_MMLU.questions * factor)


def _sweeps() -> dict[str, list[tuple[str, Scenario]]]:
    rates = {"mmlu": 150.0, "bbh": 40.0, "hellaswag": 100.0, "ceval": 100.0}
    return {
        "requests a second": [(f"{rate}", _DEFAULT.at(rate)) for rate in (50, 100, 150, 200, 250)],
        "suite": [(name, Scenario(shape, rates[name])) for name, shape in FEWSHOT_SUITES.items()],
        "suite, Zipf 1.0": [
            (name, Scenario(replace(shape, zipf=1.0), rates[name])) for name, shape in FEWSHOT_SUITES.items()
        ],
        "cache, tokens": [
            (f"{tokens}", replace(_DEFAULT, cache_tokens=tokens)) for tokens in (10_000, 20_000, 40_000, 200_000)
        ],
    }


def run(context: Context) -> Report:
    return run_routing(RoutingWorkload("fewshot", _shape, _DEFAULT_RATE, 180.0, _sweeps()), context)
