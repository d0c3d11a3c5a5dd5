"""What is written on a metrics page is read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.prometheus.exposition import gauges, page
from plumage.prometheus.histogram import Histogram
from plumage.prometheus.parser import Buckets, Sample, buckets_of, samples

BOUNDS = (-1.0, 0.0, 0.5, 2.0)


@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cc", "Zl", "Zp", "Cs"))), st.integers(-9, 9)))
def test_labels_and_values_survive_writing_and_reading(values: dict[str, float]) -> None:
    found = samples(page(gauges("a:b", "Text.", "key", values)), "a:b")
    assert {sample.labels["key"]: sample.value for sample in found} == values


@given(st.lists(st.floats(-3, 3)))
def test_histogram_survives_writing_and_reading(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    histogram.add_all(values)
    reached = [sum(value <= bound for value in values) for bound in BOUNDS]
    found = list(samples(page(histogram.lines("x", "Text.")), "x"))
    assert buckets_of(found, "x") == Buckets(list(BOUNDS), [*reached, len(values)], pytest.approx(sum(values)))
    assert histogram.count == len(values)


def test_buckets_of_several_series_are_summed() -> None:
    text = 'x_bucket{r="0",le="1"} 2\nx_bucket{r="0",le="+Inf"} 3\nx_sum{r="0"} 4\n'
    assert buckets_of(samples(text + text.replace('"0"', '"1"'), "x"), "x") == Buckets([1.0], [4, 6], 8.0)


def test_infinite_counts_of_a_histogram_are_zero() -> None:
    text = 'x_bucket{le="1"} +Inf\nx_bucket{le="+Inf"} 3\nx_sum +Inf\n'
    assert buckets_of(samples(text, "x"), "x") == Buckets([1.0], [0, 3], 0.0)


def test_page_without_the_histogram_has_no_buckets() -> None:
    assert buckets_of(samples("x 1\n", "x"), "x") is None


@pytest.mark.parametrize("line", ["x", "x{", "x NaN", "x +Inf", "x -Inf", "x 1e300", "x{a=}", 'x{a="b"}', "x word"])
def test_line_without_a_finite_number_is_zero(line: str) -> None:
    assert [sample.value for sample in samples(line, "x")] == [0.0]


def test_value_stands_before_the_time_and_behind_the_braces() -> None:
    (sample,) = samples('x{a="b } 7"} 3.5 1700000000000', "x")
    assert (sample.value, sample.labels) == (3.5, {"a": "b } 7"})
    assert Sample("x", " 2 9").value == 2.0
