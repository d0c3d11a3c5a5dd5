"""The workloads of `quality`: prompts, fleets and rates, fixed before any router ran.

Shapes are those of the virtual-time benchmarks. All but few-shot are smaller, with smaller caches, so that a run takes
about ten seconds. The trace is the synthetic one, without prompts above 24,000 tokens, and with short answers: long
ones cost this machine's CPU and say nothing about routing. `percent` scales the device's time, so that each workload
sends as many requests a second as two cores serve easily.

The rate is where the virtual-time fleet with the policy of SGLang's gateway, the peers' own, still has P95 of the time
to first token under 2 s: the mean of seeds 1 to 3, of the requests after the first fifth, rounded. Ours keeps that
limit at the same rate or a higher one there, so the rate overloads no contender. No rate of the trace keeps that limit,
since long prompts alone take longer. Its rate follows the rule of the bench `trace`: with cold caches, prefill would
take 60 % of the engines' time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from plumage_bench.benches.trace.mooncake import BLOCK
from plumage_bench.benches.trace.synthetic import synthetic_trace
from plumage_bench.ours import Ours
from plumage_bench.workloads import (
    FEWSHOT_SUITES,
    ClosedLoop,
    GspShape,
    LongdocShape,
    MultiturnShape,
    OpenLoop,
    Prompt,
    Source,
    Timed,
    conversations,
    fewshot_prompts,
    gsp_prompts,
    longdoc_prompts,
)

__all__ = ["CASES", "Case"]

_BLOCK_SIZE: Final = 16  # of the engines
_GSP: Final = GspShape(groups=32, queries=16)
_MULTITURN: Final = MultiturnShape(at_once=64)
_LONGDOC: Final = LongdocShape(documents=80)
_FEWSHOT: Final = replace(FEWSHOT_SUITES["mmlu"], questions=1500)
_TRACED, _LONGEST, _ANSWER = 400, 24_000, 4  # requests; tokens of a prompt; tokens of an answer


@dataclass(frozen=True)
class Case:
    """source: prompts and arrivals of a seed, in modelled seconds, at `rate` requests a second. cache_tokens: of each
    engine. percent: seconds on the clock for 100 modelled ones. block_size: tokens of a name in prompts.
    message_blocks: a longer text is sent as several messages; 0 for one message each stretch."""

    source: Callable[[int, float], Source]
    rate: float
    cache_tokens: int
    percent: int
    block_size: int = 16
    message_blocks: int = 0

    @property
    def scale(self) -> float:
        """Seconds on the clock of a modelled second."""
        return self.percent / 100.0

    def arrivals(self, seed: int) -> Source:
        """A new source: a run uses it up."""
        return self.source(seed, self.rate)

    def ours(self, changed: Mapping[str, Any] | None = None) -> Ours:
        """The pool. Its engines are those of the routing benchmarks, and the same for all contenders."""
        return Ours(
            {
                "engine.simulator.blockSize": _BLOCK_SIZE,
                "engine.simulator.cacheBlocks": self.cache_tokens // _BLOCK_SIZE,
                "engine.simulator.device.timeScalePercent": self.percent,
            }
            | dict(changed or {})
        )


def _traced(seed: int, rate: float) -> Source:
    """The trace at another mean rate, by stretching all times."""
    requests = [one for one in synthetic_trace(_TRACED, seed) if one.input_tokens <= _LONGEST]
    first, last = requests[0].at, requests[-1].at
    stretch = len(requests) / rate / (last - first)
    return Timed(
        [
            ((one.at - first) * stretch, Prompt(one.input_tokens, one.full_blocks, _ANSWER, number))
            for number, one in enumerate(requests)
        ]
    )


CASES: Final[Mapping[str, Case]] = {
    "gsp": Case(lambda seed, rate: OpenLoop(gsp_prompts(_GSP, seed), rate, seed), 7.0, 50_000, 12),
    "multiturn": Case(
        lambda seed, rate: ClosedLoop(conversations(_MULTITURN, seed), rate, seed, _MULTITURN.at_once),
        16.5, 100_000, 22, message_blocks=64,
    ),
    "longdoc": Case(lambda seed, rate: OpenLoop(longdoc_prompts(_LONGDOC, seed), rate, seed), 4.3, 50_000, 7),
    "fewshot": Case(lambda seed, rate: OpenLoop(fewshot_prompts(_FEWSHOT, seed), rate, seed), 154.0, 200_000, 90),
    "trace": Case(_traced, 1.7, 200_000, 5, block_size=BLOCK, message_blocks=4),
}  # fmt: skip
