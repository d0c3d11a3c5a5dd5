"""The highest request rate that keeps a percentile of the time to first token under a limit, of one seed.

A seed fixes the prompts and the stream of arrivals up to the clock's speed, so two contenders at one seed differ in
routing only. What is found is rough: near the limit a seed is late by luck too (`crossing`).
"""

from __future__ import annotations

from math import sqrt

from plumage_bench.contenders import Contender
from plumage_bench.scenario import Scenario, serve

__all__ = ["LATE_SHARE", "LIMIT_SECONDS", "highest_rate", "late_share"]

LIMIT_SECONDS = 2.0
LATE_SHARE = 0.05  # P95
_FLOOR, _CEILING = 0.02, 10.0  # of the scenario's rate: beyond them the search gives up
_ROUNDING = 1.0 + 1e-9  # a bracket of one stride is not halved where the tolerance is the stride


def highest_rate(
    contender: Contender,
    scenario: Scenario,
    seed: int,
    tolerance: float = 1.02,
    stride: float = 1.3,
    floor: float = 0.0,
) -> float:
    """Brackets from the scenario's own rate by strides, then halves the bracket down to `tolerance`. A rate that does
    not hold is found out early: begin above what is expected. Below `floor`, requests a second, nobody looks: a rate
    there says only that the true one is no higher."""
    low = high = scenario.rate
    if _keeps(contender, scenario, seed):
        while high < _CEILING * scenario.rate and _keeps(contender, scenario.at(high * stride), seed):
            high *= stride
        low, high = high, high * stride
    else:
        low /= stride
        while low > max(_FLOOR * scenario.rate, floor) and not _keeps(contender, scenario.at(low), seed):
            low, high = low / stride, low
    while high / low > tolerance * _ROUNDING:
        middle = sqrt(low * high)
        if _keeps(contender, scenario.at(middle), seed):
            low = middle
        else:
            high = middle
    return low


def late_share(contender: Contender, scenario: Scenario, seed: int) -> float:
    """Requests that waited longer than the limit, of all that were served."""
    run = serve(contender, scenario, seed)
    return sum(served.ttft > LIMIT_SECONDS for served in run.served) / len(run.served)


def _keeps(contender: Contender, scenario: Scenario, seed: int) -> bool:
    """Does the percentile hold at the scenario's rate?"""
    run = serve(contender, scenario, seed, late_after=LIMIT_SECONDS)
    late = sum(served.ttft > LIMIT_SECONDS for served in run.served)
    return run.complete and late <= LATE_SHARE * len(run.served)
