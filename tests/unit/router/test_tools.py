"""Tools are sorted by name, with sorted keys, and nothing else of them changes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage_router.request.tools import sorted_tools

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMED = st.fixed_dictionaries({"name": st.text(max_size=4), "parameters": JSON})
TOOLS = st.lists(
    st.dictionaries(st.text(max_size=4), JSON, max_size=3)
    | NAMED
    | st.fixed_dictionaries({"type": st.just("function"), "function": NAMED}),
    max_size=6,
)


@given(TOOLS, st.integers(0, 9))
def test_same_tools_in_any_order_become_equal(tools: list[Any], seed: int) -> None:
    rng, other = random.Random(seed), list(tools)
    rng.shuffle(other)
    other = [dict(rng.sample(list(tool.items()), len(tool))) for tool in other]
    one, two = (sorted_tools({"tools": given}) or given for given in (tools, other))
    assert json.dumps(one) == json.dumps(two)


@given(TOOLS)
def test_nothing_but_the_order_changes(tools: list[Any]) -> None:
    found = sorted_tools({"tools": tools})
    if found is not None:
        assert sorted(json.dumps(tool, sort_keys=True) for tool in found) == sorted(
            json.dumps(tool, sort_keys=True) for tool in tools
        )
        assert json.dumps(found) != json.dumps(tools)
        assert sorted_tools({"tools": found}) is None


@pytest.mark.parametrize("tools", [None, "x", [1], [{}, "x"], []])
def test_other_values_stay(tools: Any) -> None:
    assert sorted_tools({}) is sorted_tools({"tools": tools}) is None
