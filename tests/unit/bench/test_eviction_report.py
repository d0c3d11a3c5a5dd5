"""What `bench eviction` reports of a policy without hits."""

from __future__ import annotations

from plumage_bench.benches.eviction import POLICIES, SUITE_ROOM, _report
from plumage_bench.benches.eviction.adversary import Construction


def test_areas_are_listed_and_no_ratio_is_taken_to_zero() -> None:
    some = dict.fromkeys(POLICIES, 0.5)
    below_the_loop = {**some, "Lru": 0.0, "Rlt": 0.2}
    suites = {SUITE_ROOM: {"mmlu": some}}
    worst = [Construction(8, 8.0, 3.0, 3.0, 3.0)]
    report = _report([1], {0.5: below_the_loop, 0.6: below_the_loop}, some, suites, some, worst)
    assert (report.keys["lru_area"], report.keys["rlt_area"]) == (0.0, 0.2)
    assert not [key for key in report.keys if "area_over" in key]
    assert "undefined" in report.tables[0].notes
