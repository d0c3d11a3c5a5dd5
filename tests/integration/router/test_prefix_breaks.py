"""A client that changes early bytes of its prompt sees what that costs: explanation, metrics and status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.scrapes import families

from plumage_router.routing.prefix_breaks import BreakCause

RULES = "Answer in one short sentence, and name your sources. " * 100
TASK = {"role": "user", "content": "Compare the two reports. " * 100}
LATER = [{"role": "assistant", "content": "They differ in three places."}, {"role": "user", "content": "Which?"}]


def turn(kit: Any, system: str, *later: dict[str, str]) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, TASK, *later]
    return {**kit.chat(), "messages": messages, "stream": True}


async def counted(running: Any) -> dict[str, dict[str, float]]:
    page = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    found = families(page)
    names = ("plumage_router_prefix_breaks_total", "plumage_router_prefix_lost_tokens_total")
    return {name: {sample.labels["cause"]: sample.value for sample in found[name].samples} for name in names}


@pytest.mark.parametrize("changed", [True, False])
async def test_date_in_the_system_prompt_is_named(start: Any, kit: Any, changed: bool) -> None:
    running = await start(engines=2, policy={"name": "Lbgr"})
    before, after = f"It is 14:15.\n{RULES}", f"It is {'14:16' if changed else '14:15'}.\n{RULES}"
    assert (await running.post(turn(kit, before))).status == 200
    assert (await running.post(turn(kit, after, *LATER))).status == 200
    record, first = running.router.pool.decisions.audit.latest(2)
    assert first.prefix_break is None
    counts = await counted(running)
    assert set(counts["plumage_router_prefix_breaks_total"]) == set(BreakCause)
    if not changed:
        assert record.prefix_break is None
        assert sum(counts["plumage_router_prefix_breaks_total"].values()) == 0
        return
    assert record.prefix_break.cause is BreakCause.DATE_OR_NUMBER
    lost = record.prefix_break.lost_tokens
    assert 0.9 < lost * running.router.pool.decider.rate.bytes_per_token / len(RULES + TASK["content"]) < 1.1
    assert record.document()["prefixBreak"] == {"cause": "DateOrNumber", "lostTokens": lost}
    assert f"its early bytes changed (DateOrNumber), which lost ~{lost} cached tokens" in record.why()
    assert counts["plumage_router_prefix_breaks_total"]["DateOrNumber"] == 1
    assert counts["plumage_router_prefix_lost_tokens_total"]["DateOrNumber"] == lost


async def test_tenants_are_compared_with_themselves(start: Any, kit: Any, tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("acme key-a\nglobex key-b\n")
    running = await start(engines=1, auth={"apiKeysFile": str(tmp_path / "keys")})
    first, second = turn(kit, f"It is 14:15.\n{RULES}"), turn(kit, f"It is 14:16.\n{RULES}", *LATER)
    assert (await running.post(first, authorization="Bearer key-a")).status == 200
    assert (await running.post(second, authorization="Bearer key-b")).status == 200
    assert not running.router.pool.decisions.prefix_breaks.counts
    assert (await running.post(second, authorization="Bearer key-a")).status == 200
    assert running.router.pool.decisions.prefix_breaks.counts == {BreakCause.DATE_OR_NUMBER: 1}


def tool(name: str, *, turned: bool = False) -> dict[str, Any]:
    function = {"name": name, "description": f"Reads the {name}. " * 40, "parameters": {"type": "object"}}
    return {"type": "function", "function": dict(reversed(function.items())) if turned else function}


@pytest.mark.parametrize("sort", [False, True])
async def test_tools_in_another_order_keep_their_prefix_when_sorted(start: Any, kit: Any, sort: bool) -> None:
    running = await start(engines=1, sortTools=sort)
    names = ["mail", "calendar", "files", "web"]
    tools, others = [tool(name) for name in names], [tool(name, turned=True) for name in reversed(names)]
    for body, given in ((turn(kit, RULES), tools), (turn(kit, RULES, *LATER), others)):
        assert (await running.post({**body, "tools": given})).status == 200
    pool = running.router.pool
    first, second = (seen.json for seen in running.engines[0].seen)
    if sort:
        assert [one["function"]["name"] for one in first["tools"]] == sorted(names)
        assert json.dumps(first["tools"]) == json.dumps(second["tools"])
        assert (pool.metrics.sorted_tools, dict(pool.decisions.prefix_breaks.counts)) == (2, {})
    else:
        assert (first["tools"], second["tools"]) == (tools, others)
        assert (pool.metrics.sorted_tools, dict(pool.decisions.prefix_breaks.counts)) == (0, {BreakCause.ORDER: 1})
