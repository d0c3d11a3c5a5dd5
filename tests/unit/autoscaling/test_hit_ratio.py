"""The hit ratio scales by the miss-ratio curve: a replica is added only where more cache raises the ratio enough."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.autoscaling import KNEE, free, pool, spec_of

from plumage.autoscaling import Autoscaler, CacheJudge, Decision
from plumage.mrc import MissRatioCurve

HITS = {"type": "CacheHitRatio", "targetPercent": 70}
FLAT = MissRatioCurve([0, 100, 100_000], [0.0, 0.3, 0.3], 1e6)


def decide(
    ratio: float | None,
    curve: MissRatioCurve | None,
    *,
    replicas: int = 2,
    most: int = 8,
    cache: float = 1000.0,
    extra: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> Decision:
    """Caches of 1,000 tokens each, five minutes after the number of ready replicas last changed."""
    load: dict[str, Any] = {"hit_ratio": ratio, "curve": curve, "cache": cache, **more}
    scaler = Autoscaler()
    spec = spec_of(HITS, *extra, most=most, behavior=free())
    values = [0.0] * replicas
    scaler.decide(spec, pool(values, at=0.0, **load), 0.0)
    return scaler.decide(spec, pool(values, at=300.0, **load), 300.0)


def test_grows_where_the_curve_predicts_the_target() -> None:
    decision = decide(0.4, KNEE)
    assert decision.replicas == 4
    assert "CacheHitRatio 40.0%, target 70 %: the curve predicts 80.0% with 4, wants 4." in decision.message


def test_does_not_grow_where_the_curve_predicts_no_gain() -> None:
    decision = decide(0.3, FLAT)
    assert decision.replicas == 1  # the existing caches are more than enough
    assert "the curve predicts no more than 30.0% with 8: none is added, 30.0% with 1" in decision.message


def test_does_not_grow_where_the_bound_misses_the_target() -> None:
    assert decide(0.4, KNEE, most=3).replicas == 2


def test_does_not_grow_while_caches_are_cold() -> None:
    """Two caches could reach 40 % and have 10 %: they only need time."""
    assert decide(0.1, MissRatioCurve([0, 2000, 100_000], [0.0, 0.75, 0.76], 1e6)).replicas == 2


def test_shrinks_only_where_the_target_is_kept() -> None:
    assert decide(0.8, KNEE, replicas=8).replicas == 4  # 3 would have 60 %
    assert decide(0.8, KNEE, replicas=4).replicas == 4


def test_duplicated_contents_count_as_less_cache() -> None:
    """Eight caches act as four would. The curve for their nominal size calls four too many, and is not believed."""
    assert decide(0.6, KNEE, replicas=8, most=16).replicas == 8


def test_ratio_near_its_target_changes_nothing() -> None:
    assert decide(0.65, KNEE, replicas=3).replicas == 3


def test_hit_ratio_prevents_other_metrics_from_shrinking_the_pool() -> None:
    idle_engines = ({"type": "TotalTokensPerSecond", "target": 1000},)
    assert decide(0.8, KNEE, replicas=4, extra=idle_engines).replicas == 4


@pytest.mark.parametrize(
    ("ratio", "curve", "cache"),
    [(None, KNEE, 1000.0), (0.4, None, 1000.0), (0.4, KNEE, 0.0), (0.4, MissRatioCurve([0], [0.0], 999.0), 1000.0)],
)
def test_unknown_figures_hold_the_size(ratio: float | None, curve: MissRatioCurve | None, cache: float) -> None:
    assert decide(ratio, curve, cache=cache).reason == "MetricMissing"


def test_no_proposal_without_answers() -> None:
    decision = decide(None, KNEE, arrivals=0, in_flight=0)
    assert decision.replicas == 2
    assert decision.proposals[0].replicas is None
    assert not decision.proposals[0].missing


def test_ratio_of_few_replicas_does_not_judge_many() -> None:
    scaler, spec = Autoscaler(), spec_of(HITS, most=8, behavior=free())
    load: dict[str, Any] = {"hit_ratio": 0.4, "curve": KNEE, "cache": 1000.0}
    for second in (0.0, 130.0):
        decision = scaler.decide(spec, pool([0.0] * 2, at=second, **load), second)
    assert decision.replicas == 4
    for second in (145.0, 160.0, 250.0):  # four are ready, but the figure is still that of two
        assert scaler.decide(spec, pool([0.0] * 4, at=second, **load), second).replicas == 4


ratios = st.integers(0, 1_000_000).map(lambda millionths: millionths / 1e6)  # finer ones are lost to rounding


@st.composite
def curves(draw: st.DrawFn) -> MissRatioCurve:
    sizes = sorted(draw(st.sets(st.integers(1, 100_000), min_size=1, max_size=8)))
    hits = sorted(draw(st.lists(ratios, min_size=len(sizes), max_size=len(sizes))))
    return MissRatioCurve([0, *sizes], [0.0, *hits], 1e6)


@given(curves(), ratios, st.integers(1, 50), st.floats(1.0, 10_000.0))
def test_predictions_rise_with_replicas_and_agree_with_the_measured_ratio(
    curve: MissRatioCurve, measured: float, replicas: int, cache: float
) -> None:
    judge = CacheJudge(curve, measured, replicas, cache)
    predicted = [judge.predict(count) for count in range(1, 60)]
    assert judge.predict(replicas) == measured
    assert all(0.0 <= ratio <= 1.0 for ratio in predicted)
    assert all(low <= high + 1e-9 for low, high in pairwise(predicted))


@given(curves(), ratios, ratios, st.integers(1, 50), st.floats(1.0, 10_000.0), st.integers(1, 60))
def test_fewest_is_the_smallest_number_that_reaches_the_ratio(
    curve: MissRatioCurve, measured: float, wanted: float, replicas: int, cache: float, most: int
) -> None:
    judge = CacheJudge(curve, measured, replicas, cache)
    slow = next((count for count in range(1, most + 1) if judge.predict(count) >= wanted), None)
    found = judge.fewest(wanted, most)
    near = judge.predict(most if found is None else found)  # equal predictions may differ by their rounding
    assert found == slow or abs(near - wanted) < 1e-9


def test_equal_predictions_need_no_further_replica() -> None:
    curve = MissRatioCurve([0, 1, 2, 130, 131], [0.0, 0.0, 8e-6, 8e-6, 9e-6], 1e6)
    judge = CacheJudge(curve, measured=7e-6, replicas=1, cache=65.0)
    assert judge.predict(2) < judge.predict(1), "the rounding"
    assert judge.fewest(7e-6, 3) == 1
