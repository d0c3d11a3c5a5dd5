"""The trace in a fleet: stretched by a factor that no policy influences, served completely, and
averaged field by field.
"""

from __future__ import annotations

import pytest

from plumage_bench.baselines.routing import POLICY_NAMES
from plumage_bench.benches.trace.mooncake import BLOCK, TracedRequest
from plumage_bench.benches.trace.routed import Fleet, Routed, fleets, mean, route, stretch
from plumage_bench.routing.contenders import EVICTIONS, OURS, Contender

SESSIONS = [
    TracedRequest(
        at=4.0 * turn + 0.4 * session,
        input_tokens=BLOCK * (4 * turn + 4) + 17,
        output_tokens=20,
        blocks=(0, *(1000 * session + block for block in range(1, 4 * turn + 4)), 1000 * session + 500 + turn),
    )
    for turn in range(4)
    for session in range(1, 9)
]


def test_every_policy_is_run_and_ours_comes_first() -> None:
    runs = fleets([1, 2], 1.0)
    assert {run.contender.policy for run in runs[:2]} == {OURS.policy}
    assert {run.contender.policy for run in runs} == set(POLICY_NAMES)
    assert len(runs) == 2 * len({run.label for run in runs})


def test_every_policy_is_run_over_every_eviction() -> None:
    runs = fleets([1], 1.0)
    by_eviction = [{run.contender.policy for run in runs if run.contender.eviction == one} for one in EVICTIONS]
    assert by_eviction == [set(POLICY_NAMES)] * len(EVICTIONS)


def test_light_trace_keeps_its_times_and_a_heavy_one_is_stretched_in_proportion() -> None:
    assert stretch(SESSIONS) == 1.0
    heavy = [TracedRequest(n / 100, 8000, 1, tuple(range(16 * n, 16 * n + 16))) for n in range(1000)]
    heavier = [TracedRequest(n / 200, 8000, 1, tuple(range(16 * n, 16 * n + 16))) for n in range(1000)]
    assert stretch(heavy) > 2.0
    assert stretch(heavier) == pytest.approx(2 * stretch(heavy), rel=0.02)


def test_run_repeats_and_every_request_is_in_its_figures() -> None:
    fleet = Fleet(OURS, 1, 1.0)
    figures = route(SESSIONS, fleet)
    assert figures == route(SESSIONS, fleet)
    assert 0.0 < figures.ttft_p50 <= figures.ttft_p95 <= figures.ttft_p99
    assert figures.latency_p50 > figures.ttft_p50


def test_hits_are_full_blocks_of_the_own_cache_of_a_worker() -> None:
    one_session = [request for request in SESSIONS if request.blocks[1] == 1001]
    figures = route(one_session, Fleet(Contender("prefix-aware", "PrefixAware", "Lru"), 1, 1.0))
    tokens = sum(request.input_tokens for request in one_session)
    assert figures.hit_ratio == pytest.approx(BLOCK * (4 + 8 + 12) / tokens)


def test_mean_is_taken_field_by_field() -> None:
    low, high = Routed(*[1.0] * 9), Routed(*[float(n) for n in range(9)])
    assert mean([low, high]) == Routed(*[(1 + n) / 2 for n in range(9)])
