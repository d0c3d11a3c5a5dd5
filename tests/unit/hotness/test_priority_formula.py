"""The priority formula language: small, bounded, finite, and never evaluated as code."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.api.v1alpha1.cache import PRIORITY, HostMemorySpec, HotnessSpec
from plumage.errors import ConfigurationError
from plumage.hotness.priority_formula import MAX_CHARACTERS, MAX_TERMS, parse_formula
from plumage.tiering.admission import PRIORITY as PAPER


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("frequency + clock / length", 3 + 255 / 50),
        ("freq*clock", 765),
        ("clock + freq / length", 255 + 3 / 50),
        ("frequency - clock * 2 + 1", 3 - 510 + 1),
        ("frequency / clock / length", 3 / 255 / 50),
        (" depth ", 4),
        ("0.5 * length", 25),
    ],
)
def test_products_bind_before_sums_and_both_read_from_the_left(text: str, value: float) -> None:
    assert parse_formula(text)(3, 255, 50, 4) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "frequency +",
        "+ frequency",
        "frequency clock",
        "frequency ** 2",
        "frequency // 2",
        "(frequency)",
        "frequency; clock",
        "__import__('os').system('true')",
        "Frequency",
        "clocks",
        "frequency.__class__",
        "1e999",
        "9999999999999",
        "frequency % clock",
        "frequency\x00",
    ],
)
def test_other_text_is_refused_with_help(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write terms"):
        parse_formula(text)


def test_length_and_terms_are_bounded() -> None:
    assert parse_formula("+".join(["clock"] * MAX_TERMS))(1, 2, 3) == 2 * MAX_TERMS
    with pytest.raises(ConfigurationError, match="at most"):
        parse_formula("+".join(["clock"] * (MAX_TERMS + 1)))
    with pytest.raises(ConfigurationError, match="at most"):
        parse_formula("clock" + " " * MAX_CHARACTERS)


names = st.sampled_from(["frequency", "clock", "length", "depth", "2", "0", "999999999"])
operators = st.sampled_from(["+", "-", "*", "/"])
fields = st.floats(0, 1e12)


@given(names, st.lists(st.tuples(operators, names), max_size=MAX_TERMS - 1), fields, fields, fields, fields)
def test_every_formula_is_finite_everywhere(
    first: str, rest: list[tuple[str, str]], frequency: float, clock: float, length: float, depth: float
) -> None:
    text = first + "".join(operator + name for operator, name in rest)
    if len(text) > MAX_CHARACTERS:
        return
    assert math.isfinite(parse_formula(text)(frequency, clock, length, depth))


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        formula = parse_formula(text)
    except ConfigurationError:
        return
    assert math.isfinite(formula(1, 1, 1, 1))


@given(st.from_regex(PRIORITY, fullmatch=True).filter(lambda text: len(text) <= MAX_CHARACTERS))
def test_formulas_of_a_manifest_can_be_parsed(text: str) -> None:
    assert math.isfinite(parse_formula(text)(3, 255, 50, 4))


def test_manifest_and_parser_have_the_same_bounds() -> None:
    for spec, name in ((HotnessSpec, "priority"), (HostMemorySpec, "priority")):
        longest = max(bound.max_length for bound in spec.model_fields[name].metadata if hasattr(bound, "max_length"))
        assert longest == MAX_CHARACTERS
    assert HostMemorySpec().priority == PAPER.text
