"""Multi-turn conversations: 128 clients, each of which sends its next round after the answer (KVRouting App. A)."""

from __future__ import annotations

from dataclasses import replace

from plumage_bench.harness import Context, Report
from plumage_bench.routing.bench import RoutingWorkload, run_routing
from plumage_bench.routing.scenario import Scenario
from plumage_bench.workloads import MultiturnShape

__all__ = ["run"]

_DEFAULT = Scenario(MultiturnShape(), 12.0)


def _shape(factor: int) -> MultiturnShape:
    return MultiturnShape(clients=128 * factor)


def _sweeps() -> dict[str, list[tuple[str, Scenario]]]:
    shape, default = MultiturnShape(), _DEFAULT
    return {
        "requests a second": [(f"{rate}", default.at(rate)) for rate in (4, 8, 12, 16, 20)],
        "workers": [(f"{workers}", replace(default, workers=workers)) for workers in (1, 2, 4, 6, 8, 10)],
        "clients": [
            (f"{count}", replace(default, shape=replace(shape, clients=count))) for count in (64, 128, 256, 512)
        ],
        "output tokens": [
            (f"{count}", replace(default, shape=replace(shape, output_tokens=count))) for count in (4, 16, 64, 128)
        ],
        "share of answers of 128 tokens in one piece": [
            (f"{share}", replace(default, rate=10.0, shape=replace(shape, output_tokens=128), in_one_piece=share))
            for share in (0.0, 0.5, 1.0)
        ],
        "system prompt, tokens": [
            (f"{count}", replace(default, shape=replace(shape, system_tokens=count))) for count in (0, 512, 2048)
        ],
    }


def run(context: Context) -> Report:
    return run_routing(RoutingWorkload("multiturn", _shape, 12.0, 14.0, _sweeps()), context)
