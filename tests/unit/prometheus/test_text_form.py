"""What is written for scrapers is what they read, for any labels and texts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scrapes import families

from plumage.prometheus.exposition import counter, counters, gauge, gauges, gauges_by, histogram, page

AWKWARD = st.text(st.one_of(st.sampled_from('\\"\nn{}=, #\r'), st.characters(codec="utf-8")), max_size=12)
NUMBERS = st.floats(allow_nan=False)


@given(labels=st.dictionaries(AWKWARD, NUMBERS, max_size=5), text=AWKWARD.map("x".__add__).map(lambda t: t + "x"))
def test_labels_and_texts_come_back_unchanged(labels: dict[str, float], text: str) -> None:
    read = families(page(gauges("g", text, "name", labels), gauge("after", "It is read as well.", 1)))
    assert read["g"].documentation == text
    assert {sample.labels["name"]: sample.value for sample in read["g"].samples} == labels
    assert read["after"].samples[0].value == 1


@given(samples=st.dictionaries(st.tuples(AWKWARD, AWKWARD), NUMBERS, max_size=5))
def test_several_labels_come_back_unchanged(samples: dict[tuple[str, ...], float]) -> None:
    (read,) = families(page(gauges_by("g", "Now.", ("name", "kind"), samples))).values()
    assert {(sample.labels["name"], sample.labels["kind"]): sample.value for sample in read.samples} == samples


def test_backslash_quote_and_newline_are_escaped() -> None:
    """Written by hand from the format's text: a reader with the same mistake would not notice."""
    written = page(counters("c", 'a\\b "c"\nd', "name", {'a\\b "c"\nd': 1}))
    assert written == ('# HELP c_total a\\\\b "c"\\nd\n# TYPE c_total counter\nc_total{name="a\\\\b \\"c\\"\\nd"} 1\n')


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (True, "1"),
        (64.0, "64"),
        (1234567890123, "1234567890123"),
        (0.1, "0.1"),
        (25e-6, "2.5e-05"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_are_whole_and_exact(value: float, written: str) -> None:
    assert list(gauge("g", "Now.", value))[-1] == f"g {written}"


@given(NUMBERS)
def test_number_reads_back_as_itself(value: float) -> None:
    assert families(page(gauge("g", "Now.", value)))["g"].samples[0].value == value


def test_every_counter_name_ends_in_total() -> None:
    read = families(page(counter("one", "A count.", 3), counters("many", "Counts.", "kind", {"a": 1, "b": 2})))
    assert {name: {sample.name for sample in family.samples} for name, family in read.items()} == {
        "one_total": {"one_total"},
        "many_total": {"many_total"},
    }


def test_histogram_ends_with_its_total() -> None:
    (read,) = families(page(histogram("h", "Times.", (-1, 0.5, 2.0), (1, 1, 3, 4), 7.25))).values()
    buckets = [(sample.labels["le"], sample.value) for sample in read.samples if sample.name == "h_bucket"]
    assert buckets == [("-1", 1), ("0.5", 1), ("2", 3), ("+Inf", 4)]
    assert {sample.name: sample.value for sample in read.samples[-2:]} == {"h_sum": 7.25, "h_count": 4}


def test_histogram_without_its_last_count_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        page(histogram("h", "Times.", (1.0, 2.0), (1, 1), 3.0))


def test_family_without_samples_is_still_declared() -> None:
    assert families(page(counters("c", "None yet.", "kind", {})))["c_total"].samples == []
