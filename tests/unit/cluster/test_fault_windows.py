"""When a hit ratio counts as recovered after a fault (tests/e2e_cluster/test_faults_under_load.py)."""

from __future__ import annotations

from collections.abc import Callable

from support.kube_load import Row, Run
from support.kube_windows import Window, reference

_FAULT = 1000.0
_WINDOW = Window(seconds=10.0, least=50)


def fleet(ratio: Callable[[float], float], until: float, rate: float = 10.0) -> Run:
    """Short requests from 50 s before the fault on. `ratio` gives the hit ratio by the seconds since the fault."""
    sent = [_FAULT - 50 + number / rate for number in range(int((50 + until) * rate))]
    rows = [Row(f"{at}", at, at, "ended", prompt=1000, cached=round(1000 * ratio(at - _FAULT))) for at in sent]
    return Run(rows, [])


def test_fleet_without_loss_recovers_at_once() -> None:
    assert _WINDOW.back_s(fleet(lambda _: 0.9, 40), _FAULT, _FAULT + 40, 0.8) == 0


def test_hits_before_the_fault_do_not_count() -> None:
    run = fleet(lambda since: 1.0 if since < 0 else 0.5, 40)
    assert _WINDOW.back_s(run, _FAULT, _FAULT + 40, 0.8) is None


def test_good_window_before_bad_ones_is_no_recovery() -> None:
    run = fleet(lambda since: 0.5 if 20 <= since < 30 else 0.9, 60)
    back = _WINDOW.back_s(run, _FAULT, _FAULT + 60, 0.8)
    assert back == 28  # two of its ten seconds are low


def test_low_ratio_at_the_end_is_no_recovery() -> None:
    run = fleet(lambda since: 0.5 if since >= 50 else 0.9, 60)
    assert _WINDOW.back_s(run, _FAULT, _FAULT + 60, 0.8) is None


def test_few_answers_prove_no_recovery() -> None:
    assert _WINDOW.back_s(fleet(lambda _: 0.9, 40, rate=4), _FAULT, _FAULT + 40, 0.8) is None


def test_watch_shorter_than_a_window_has_no_verdict() -> None:
    assert _WINDOW.back_s(fleet(lambda _: 0.9, 40), _FAULT, _FAULT + 9, 0.8) is None


def test_unfinished_requests_do_not_count() -> None:
    assert Run([], [_FAULT + 3, _FAULT + 5]).known_until(_FAULT + 9) == _FAULT + 3


def test_reference_reports_its_lowest_window() -> None:
    run = fleet(lambda since: 0.5 if since < -40 else 0.9, 0)
    found = reference("Lbgr", 2, run, _FAULT - 50, _FAULT, _WINDOW)
    assert (round(found.ratio, 3), found.lowest, found.requests) == (0.82, 0.5, 500)
