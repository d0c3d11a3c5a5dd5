"""The highest request rate with a percentile of the time to first token below a limit, for one seed.

A seed fixes the prompts and, but for the speed, the arrivals. So two contenders with one seed differ only in routing.
The result is rough: near the limit a seed may also be late by chance (`crossing`).
"""

from __future__ import annotations

from math import sqrt

from plumage_bench.routing.contenders import Contender
from plumage_bench.routing.scenario import Scenario, serve

__all__ = ["LATE_SHARE", "LIMIT_SECONDS", "highest_rate", "late_share"]

LIMIT_SECONDS = 2.0
LATE_SHARE = 0.05  # P95
_FLOOR, _CEILING = 0.02, 10.0  # factors of the scenario's rate at which the search ends
_ROUNDING = 1.0 + 1e-9  # with a tolerance of one stride a bracket is not halved


def highest_rate(
    contender: Contender,
    scenario: Scenario,
    seed: int,
    tolerance: float = 1.02,
    stride: float = 1.3,
    floor: float = 0.0,
) -> float:
    """Finds a bracket from the scenario's own rate by steps, then halves it down to `tolerance`. A rate that is too
    high is detected early, so begin above the expected result. The search stops below `floor`, in requests a second;
    then the result only means that the true rate is not higher."""
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
    """The share of served requests that waited longer than the limit."""
    run = serve(contender, scenario, seed)
    return sum(served.ttft > LIMIT_SECONDS for served in run.served) / len(run.served)


def _keeps(contender: Contender, scenario: Scenario, seed: int) -> bool:
    """Whether the percentile is below the limit at the scenario's rate."""
    run = serve(contender, scenario, seed, late_after=LIMIT_SECONDS)
    late = sum(served.ttft > LIMIT_SECONDS for served in run.served)
    return run.complete and late <= LATE_SHARE * len(run.served)
