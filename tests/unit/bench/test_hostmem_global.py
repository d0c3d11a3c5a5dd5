"""What `hostmem-global` makes of its counts."""

from __future__ import annotations

import random

import pytest

from plumage_bench.hostmem_global import Counted, _report, drifting, over_local
from plumage_bench.workloads import FewshotShape


def found(gain: float) -> dict[tuple[str, str], dict[str, list[Counted]]]:
    """Two suites whose levels differ fourfold, six seeds; the pool's word is worth `gain`, chance a percent or so."""
    rng, made = random.Random(1), {}
    for suite, level in (("rich", 40_000), ("poor", 10_000)):
        for route, kinds in (("in turn", ("local", "global", "again")), ("by prefix", ("local", "global"))):
            rows: dict[str, list[Counted]] = {kind: [] for kind in kinds}
            for _ in range(6):
                prompts = level * rng.lognormvariate(0.0, 0.2)
                for kind in kinds:
                    device = prompts * (gain if kind == "global" else 1.0) * rng.lognormvariate(0.0, 0.01)
                    rows[kind].append(Counted(prompt=100_000, device=int(device), host=5_000))
            made[suite, route] = rows
    return made


def test_a_gain_stands_out_of_what_chance_does() -> None:
    keys = _report(found(1.05)).keys
    assert 1.03 < keys["global_over_local_low"] < keys["global_over_local"] < keys["global_over_local_high"] < 1.07
    assert keys["again_over_local_low"] < 1.0 < keys["again_over_local_high"]
    assert keys["pairs"] == 12


def test_no_gain_is_told_as_none() -> None:
    keys = _report(found(1.0)).keys
    assert keys["global_over_local_low"] < 1.0 < keys["global_over_local_high"]
    assert keys["by_prefix_low"] < 1.0 < keys["by_prefix_high"]


def test_all_hits_count_host_memory_too() -> None:
    both = found(1.2)
    device, whole = (over_local(both, "in turn", "global", what).ratio for what in ("device_ratio", "ratio"))
    assert 1.0 < whole < device == pytest.approx(1.2, abs=0.02)


def test_each_quarter_of_the_questions_has_other_favourites() -> None:
    prompts = drifting(FewshotShape(subjects=12, example_tokens=64, questions=400), seed=1)
    quarters = [prompts[start : start + 100] for start in range(0, 400, 100)]
    favourites = [max(range(12), key=[one.group for one in quarter].count) for quarter in quarters]
    assert len(set(favourites[:3])) == 3
