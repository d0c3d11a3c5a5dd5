"""The clients of `agents` change what they say, and its report counts as it says."""

from __future__ import annotations

import json
import random

import pytest

from plumage_bench.benches.agents import breakers as agents
from plumage_bench.benches.agents.breakers import Served, Shape
from plumage_router.request.tools import sorted_tools


def test_sorting_undoes_what_the_client_does_to_its_tools() -> None:
    rng = random.Random(1)
    tools = [agents._tool(rng, number) for number in range(12)]
    written = {json.dumps([agents._shuffled(rng, tool) for tool in rng.sample(tools, len(tools))]) for _ in range(5)}
    assert len(written) == 5
    assert len({json.dumps(sorted_tools({"tools": json.loads(one)})) for one in written}) == 1


def test_manifests_differ_in_one_field() -> None:
    plain, sorting = agents.spec(sort_tools=False), agents.spec(sort_tools=True)
    assert {**plain, "router": {"sortTools": True}} == sorting


@pytest.mark.parametrize("wrong", [0, 2])
def test_report_counts_named_and_false_breaks(wrong: int) -> None:
    shape = Shape(agents=2, turns=3)
    found = {
        ("steady", False): [Served(6, 1000, 100, 0.1, {"Changed": wrong})] * 5,
        ("tools", False): [Served(6, 1000, 900, 0.4, {"Order": 3, "Changed": 1})] * 5,
        ("tools", True): [Served(6, 1000, 100, 0.1, {})] * 5,
        ("date", False): [Served(6, 1000, 200, 0.2, {"DateOrNumber": 2})] * 5,
    }
    keys = agents._report(found, shape).keys
    assert keys["breaker_gain"] == pytest.approx(9)
    assert keys["ttft_gain"] == pytest.approx(4)
    assert keys["cost_of_date"] == pytest.approx(2)
    assert (keys["named_order"], keys["named_date"]) == (0.75, 0.5)
    assert keys["false_breaks"] == 5 * wrong
