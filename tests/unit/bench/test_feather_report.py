"""What `vllm-feather` says of waits: what an order takes from a request, not what the load does."""

from __future__ import annotations

import pytest

from plumage_bench.vllm_feather_report import Played, later


def run_of(*waits: float) -> Played:
    return Played(tokens=1, cpu=1.0, wall=1.0, waits=waits, gaps=(), batch=1.0, stops=0)


def test_a_request_is_compared_with_itself() -> None:
    fair = run_of(*(float(place) for place in range(200)))
    assert later([fair], [fair]) == 0.0
    turned = run_of(*(float(place) for place in reversed(range(200))))
    assert later([turned], [fair]) == pytest.approx(197.0, abs=2.0)


def test_the_worst_pair_counts_with_all_others() -> None:
    fair = run_of(*(1.0 for _ in range(50)))
    late = run_of(*(1.0 for _ in range(45)), *(9.0 for _ in range(5)))
    assert later([fair, late], [fair, fair]) == 8.0
    assert later([fair], [late]) == 0.0


def test_pairs_are_as_many_here_as_there() -> None:
    with pytest.raises(ValueError, match="shorter"):
        later([run_of(1.0)], [])
