"""What the agent has its engine serve, and when it counts the adapters as loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage.fleet_report import AdapterReport, source_digest
from plumage.settings.agent_config import ADAPTER_SECONDS
from plumage_engine.agent.engine.client import AdapterAnswer, EngineDownError
from plumage_engine.agent.engine_updates.adapters import AdapterSync


class Engine:
    """sent: what it was asked to serve. states: of each adapter; those without one are Loaded. served: of an engine
    without the route. down: it does not answer."""

    def __init__(self, served: frozenset[str] | None = None) -> None:
        self.sent: list[dict[str, str]] = []
        self.states: dict[str, str] = {}
        self.served = served
        self.down = False

    async def want_adapters(self, wanted: dict[str, str]) -> AdapterAnswer | None:
        if self.down:
            raise EngineDownError("a long step")
        self.sent.append(dict(wanted))
        if self.served is not None:
            return None
        reports = [AdapterReport(name, self.states.get(name, "Loaded")) for name in wanted]
        return AdapterAnswer(reports, [one.name for one in reports if one.state == "Loaded"])

    async def adapters(self) -> frozenset[str]:
        assert self.served is not None
        return self.served


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def made(engine: Any, wanted: dict[str, str], file: Path | None = None) -> tuple[AdapterSync, Clock]:
    clock = Clock()
    return AdapterSync(wanted, engine, file, clock=clock), clock


def write(path: Path, *names: str) -> Path:
    path.write_text(json.dumps({"adapters": [{"name": name, "path": f"/{name}"} for name in names]}))
    return path


async def test_adapter_is_not_offered_before_it_is_unloaded(tmp_path: Path) -> None:
    engine, file = Engine(), write(tmp_path / "agent.json", "sql", "law")
    sync, _ = made(engine, {}, file)
    await sync.check()
    assert sync.served == ("sql", "law")
    write(file, "law")
    await sync.check()
    assert (sync.served, sync.reports) == (("law",), [AdapterReport("law", source=source_digest("/law"))])
    await sync.check()
    assert engine.sent == [{"sql": "/sql", "law": "/law"}] * 2 + [{"law": "/law"}]


async def test_grace_of_a_leaving_adapter_begins_with_the_engines_answer(tmp_path: Path) -> None:
    engine, file = Engine(), write(tmp_path / "agent.json", "sql", "law")
    sync, _ = made(engine, {}, file)
    reported: list[tuple[str, ...] | None] = []
    sync.changed = lambda: reported.append(sync.served)
    await sync.check()
    write(file)
    engine.down = True
    for _ in range(2):
        with pytest.raises(EngineDownError):
            await sync.check()
    assert reported[1:] == [()], "routers learn of it though the engine does not answer"
    engine.down = False
    await sync.check()
    assert engine.sent[1:] == [{"sql": "/sql", "law": "/law"}], "requests may still be on their way"
    engine.down = True
    with pytest.raises(EngineDownError):
        await sync.check()
    engine.down = False
    await sync.check()
    await sync.check()
    assert engine.sent[2:] == [{}]
    assert not sync.used


async def test_first_adapter_does_not_unsettle_a_ready_replica(tmp_path: Path) -> None:
    engine, file = Engine(), write(tmp_path / "agent.json")
    engine.states = {"sql": "Loading"}
    sync, clock = made(engine, {}, file)
    sync.restarted()
    await sync.check()
    clock.now = 1000
    write(file, "sql")
    await sync.check()
    assert sync.settled
    sync.restarted()
    assert not sync.settled


async def test_pool_without_adapters_sends_nothing(tmp_path: Path) -> None:
    engine, file = Engine(), write(tmp_path / "agent.json")
    sync, _ = made(engine, {}, file)
    await sync.check()
    assert (engine.sent, sync.reports, sync.served, sync.settled) == ([], [], None, True)
    write(file, "sql")
    await sync.check()
    write(file)
    for _ in range(3):
        await sync.check()
    assert engine.sent == [{"sql": "/sql"}, {"sql": "/sql"}, {}]
    assert sync.served is None


async def test_new_replica_waits_for_its_adapters_but_not_for_ever() -> None:
    engine = Engine()
    engine.states = {"sql": "Loading"}
    sync, clock = made(engine, {"sql": "/sql", "law": "/law"})
    assert not sync.settled
    await sync.check()
    assert (sync.settled, sync.served) == (False, ("law",))
    clock.now = ADAPTER_SECONDS
    assert sync.settled, "the hub may hang; the other adapters and the model are served"


async def test_failed_adapter_does_not_delay_a_replica_and_a_later_one_does_not_unsettle_it(tmp_path: Path) -> None:
    engine, file = Engine(), write(tmp_path / "agent.json", "sql")
    engine.states = {"sql": "Failed", "law": "Loading"}
    sync, _ = made(engine, {"sql": "/sql"}, file)
    await sync.check()
    assert sync.settled
    write(file, "sql", "law")
    await sync.check()
    assert sync.settled, "the replica is ready already"
    sync.restarted()
    assert (sync.settled, sync.served, sync.reports) == (False, (), None)


async def test_engine_without_the_route_serves_what_its_flags_name() -> None:
    sync, _ = made(Engine(served=frozenset({"sql"})), {"sql": "/sql", "law": "/law"})
    await sync.check()
    assert (sync.served, sync.settled) == (("sql",), True)
    assert sync.reports is not None
    assert [one.state for one in sync.reports] == ["Loaded", "Failed"]
    assert "it needs the plugin" in sync.reports[1].message


async def test_engine_that_can_load_none_says_why() -> None:
    class Changed(Engine):
        async def want_adapters(self, wanted: dict[str, str]) -> AdapterAnswer | None:
            raise ConfigurationError("its engine can load no adapters: vLLM has changed")

    sync, _ = made(Changed(served=frozenset()), {"sql": "/sql"})
    await sync.check()
    assert sync.reports == [
        AdapterReport("sql", "Failed", "its engine can load no adapters: vLLM has changed", source_digest("/sql"))
    ]
    assert sync.settled
