"""The replicas that serve each LoRA adapter, by the agents' reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fleets import START, agent
from support.reporting_pool import KEY, World, report, running

from plumage.fleet_report import AdapterReport, AgentReport, source_digest
from plumage_operator.autoscaling.adapters import adapter_fields
from plumage_operator.autoscaling.pods import ScaledPod
from plumage_operator.autoscaling.pool_load import ReportWindow

MODEL = {"uri": "builtin://tiny-chat", "adapters": [{"name": "sql", "uri": "file:///sql"}]}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


HERE = source_digest("/sql")


def fields(names: list[str], *found: tuple[bool, list[AdapterReport] | None]) -> list[dict[str, Any]]:
    """The status field for replicas that are ready or not and report this."""
    pods = [ScaledPod(f"e{n}", None, ready, starting=False) for n, (ready, _) in enumerate(found)]
    windows = {f"e{n}": ReportWindow[AgentReport]() for n in range(len(found))}
    for n, (_, adapters) in enumerate(found):
        windows[f"e{n}"].add(agent(f"e{n}", START, adapters=adapters), START)
    return list(adapter_fields({name: f"/{name}" for name in names}, pods, windows).get("adapters", ()))


def test_each_adapter_names_the_replicas_that_lack_it() -> None:
    loaded, failed = AdapterReport("sql", source=HERE), AdapterReport("sql", "Failed", "its rank 64 is above 16", HERE)
    (sql,) = fields(["sql"], (True, [loaded]), (True, [failed]), (True, []))
    assert (sql["replicas"], sql["failedReplicas"]) == (1, 1)
    assert sql["message"] == "e1: its rank 64 is above 16; e2: loading"


def test_ready_replica_without_a_report_lacks_the_adapter() -> None:
    failed = AdapterReport("sql", "Failed", "gone", HERE)
    (sql,) = fields(["sql"], (True, [AdapterReport("sql", source=HERE)]), (False, [failed]), (True, None))
    assert (sql["replicas"], sql["failedReplicas"]) == (1, 0)
    assert sql["message"] == "e2: no report on its adapters"
    assert fields(["sql"], (False, [failed])) == []
    assert fields([], (True, [])) == []


def test_report_on_another_source_is_older_than_the_manifest() -> None:
    old = source_digest("/old")
    (sql,) = fields(
        ["sql"], (True, [AdapterReport("sql", source=old)]), (True, [AdapterReport("sql", "Failed", "", old)])
    )
    assert (sql["replicas"], sql["failedReplicas"], sql["message"]) == (0, 0, "e0: loading; e1: loading")


def test_message_is_bounded() -> None:
    (sql,) = fields(["sql"], *[(True, [AdapterReport("sql", "Failed", "x" * 5000, HERE)])] * 64)
    assert sql["failedReplicas"] == 64
    assert len(sql["message"]) < 700
    assert sql["message"].endswith("; 61 more")


async def test_status_follows_the_reports(world: World, tmp_path: Path) -> None:
    world.spec = {"model": MODEL, "replicas": 2}
    async with running(world, tmp_path) as loop:
        for state, replicas in (("Loading", 0), ("Loaded", 2)):
            world.now += 15  # the pool has no autoscaler, and is polled as often while an adapter is missing
            report(world, 0, adapters=[AdapterReport("sql", state, source=HERE)])
            await loop.round()
            decision = loop.decision(KEY, world.observe(KEY))  # type: ignore[arg-type]
            assert decision is not None
            assert decision.fields["adapters"][0]["replicas"] == replicas
        assert world.changed == [KEY, KEY]
        asked = len(world.asked)
        world.now += 15
        await loop.round()
        assert len(world.asked) == asked, "nothing changes now"
