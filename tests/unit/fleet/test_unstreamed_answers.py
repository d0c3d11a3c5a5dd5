"""A fleet with unstreamed answers is routed about as well as one that streams."""

from __future__ import annotations

from functools import cache

import pytest

from plumage_bench.baselines.routing import POLICY_NAMES
from plumage_bench.routing.contenders import OURS, Contender
from plumage_bench.routing.scenario import Figures, Scenario, measure, serve
from plumage_bench.workloads import GspShape


@cache
def _figures(in_one_piece: float) -> Figures:
    return measure(OURS, Scenario(GspShape(output_tokens=128), 8.0, in_one_piece=in_one_piece), 1)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_hits_and_times_are_about_equal(share: float) -> None:
    streams, pieces = _figures(0.0), _figures(share)
    assert pieces.hit_ratio > 0.95 * streams.hit_ratio
    assert pieces.ttft_at(0.5) < 1.5 * streams.ttft_at(0.5)
    assert pieces.ttft_at(0.95) < 1.8 * streams.ttft_at(0.95)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_no_work_is_left(name: str) -> None:
    scenario = Scenario(GspShape(groups=24, queries=8, lengths=(256, 512, 1024)), 40.0, in_one_piece=0.5)
    run = serve(Contender(name, name), scenario, 1)
    for worker in run.workers:
        assert worker.state.routed == 0
        assert worker.state.prefill_tokens == pytest.approx(0.0, abs=1e-6)
