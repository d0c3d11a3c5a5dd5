"""`hostile-bodies`: small requests that met a stopped router are left out."""

from __future__ import annotations

from plumage_bench.benches.hostile_bodies.rig import outside


def test_requests_in_flight_during_a_stop_are_left_out() -> None:
    stops = [(1.0, 1.05), (2.0, 2.01)]
    before, into, during, after = (0.9, 1.0), (0.99, 1.06), (1.01, 1.02), (1.05, 1.5)
    assert outside([before, into, during, after, (1.9, 2.5)], stops) == [before, after]
    assert outside([into, during], []) == [into, during]
