"""What `hostmem-global` reports from its counts."""

from __future__ import annotations

import random

import pytest

from plumage_bench.benches.hostmem_global import KINDS, Counted, _report, at_equal_bytes, drifting, over_local
from plumage_bench.workloads import FewshotShape


def found(gain: float) -> dict[tuple[str, str], dict[str, list[Counted]]]:
    """Two suites whose levels differ fourfold, six seeds. Pool-wide hotness is worth `gain`, chance about a percent."""
    rng, made = random.Random(1), {}
    for suite, level in (("rich", 40_000), ("poor", 10_000)):
        for route, kinds in KINDS.items():
            rows: dict[str, list[Counted]] = {kind: [] for kind in kinds}
            for _ in range(6):
                prompts = level * rng.lognormvariate(0.0, 0.2)
                for kind in kinds:
                    device = prompts * (gain if kind == "global" else 1.0) * rng.lognormvariate(0.0, 0.01)
                    rows[kind].append(Counted(prompt=100_000, device=int(device), host=5_000, stored=1_000))
            made[suite, route] = rows
    return made


def test_gain_stands_out_from_chance() -> None:
    keys = _report(found(1.05)).keys
    assert 1.03 < keys["interpolated_low"] < keys["interpolated"] < keys["interpolated_high"] < 1.07
    assert keys["again_over_local_low"] < 1.0 < keys["again_over_local_high"]
    assert keys["pairs"] == 12


def test_no_gain_is_reported_as_none() -> None:
    keys = _report(found(1.0)).keys
    assert keys["interpolated_low"] < 1.0 < keys["interpolated_high"]
    assert keys["as_configured_low"] < 1.0 < keys["as_configured_high"]
    assert keys["by_prefix_low"] < 1.0 < keys["by_prefix_high"]


@pytest.mark.parametrize(("stored", "device"), [(9_000, 40_000), (6_000, 39_000), (5_000, 38_000), (3_500, 33_500),
                                                  (3_000, 32_000), (1_000, 32_000)])  # fmt: skip
def test_equal_bytes_are_interpolated_between_more_and_fewer_copies(stored: int, device: int) -> None:
    def counted(stored: int, device: int) -> list[Counted]:
        return [Counted(prompt=100_000, device=device, stored=stored)] * 2

    rows = {"local": counted(7_000, 40_000), "local 3": counted(5_000, 38_000), "local 4": counted(3_000, 32_000)}
    made = {("any", "in turn"): {**rows, "global": counted(stored, 41_000)}}
    assert at_equal_bytes(made).ratio == pytest.approx(41_000 / device)


def test_all_hits_include_host_memory() -> None:
    both = found(1.2)
    device, whole = (over_local(both, "in turn", "global", what).ratio for what in ("device_ratio", "ratio"))
    assert 1.0 < whole < device == pytest.approx(1.2, abs=0.02)


def test_each_quarter_of_the_questions_has_other_favourites() -> None:
    prompts = drifting(FewshotShape(subjects=12, example_tokens=64, questions=400), seed=1)
    quarters = [prompts[start : start + 100] for start in range(0, 400, 100)]
    favourites = [max(range(12), key=[one.group for one in quarter].count) for quarter in quarters]
    assert len(set(favourites[:3])) == 3
