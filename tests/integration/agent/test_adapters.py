"""The agent has its engine serve the LoRA adapters of its settings file, and follows the file while both run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.agents import running, settings, until

from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.schema import State
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.engine_updates import adapters
from plumage_engine.agent.http.stats import report_of

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "PERIOD", 0.2)
    monkeypatch.setattr(adapters, "QUICK", 0.05)


class Replica:
    """An engine, and the settings file of its agent."""

    def __init__(self, engine: Any, directory: Any, folder: Path, pool: str) -> None:
        self.engine, self.file = engine, folder / "agent.json"
        self.http = httpx.Client(base_url=engine.url, timeout=30, trust_env=False)
        self.want({})
        token = folder / "token"
        token.write_text("admin")
        self.config = settings(directory, pool, engine, engineTokenFile=str(token))

    def want(self, wanted: dict[str, str]) -> None:
        entries = [{"name": name, "path": path, "novelty": 1} for name, path in wanted.items()]
        self.file.write_text(json.dumps({"adapters": entries, "writtenBy": "operator"}))

    def models(self) -> list[str]:
        page = self.http.get("/v1/models").json()
        return [model["id"] for model in page["data"] if model["parent"]]

    def status(self, model: str) -> int:
        body = {"model": model, "prompt": "hello", "max_tokens": 1}
        return self.http.post("/v1/completions", json=body).status_code


@pytest.fixture
def replica(make_engine: Callable[..., Any], directory: Any, tmp_path: Path, request: Any) -> Iterator[Replica]:
    (tmp_path / "engine-token").write_text("admin")
    engine = make_engine(adminTokenFile=str(tmp_path / "engine-token"))
    made = Replica(engine, directory, tmp_path, request.node.name.replace("_", "-"))
    with made.http:
        yield made


async def states(agent: Agent) -> dict[str, str]:
    return {one.name: one.state for one in (await report_of(agent)).adapters or ()}


async def test_adapters_follow_the_file_without_a_restart(replica: Replica, directory: Any) -> None:
    mirror = Mirror(100)
    replica.want({"sql": "/sql", "chess": "acme/chess"})
    async with (
        running(replica.config, file=replica.file) as agent,
        DirectorySync(directory.url, pool=replica.config.pool, mirror=mirror, poll_seconds=0.05) as sync,
    ):
        sync.set_replicas({"chat-0": 0})
        served = lambda: sync.view("chat-0").load.served  # noqa: E731
        await until(lambda: served() == ("chess", "sql"))
        assert sync.view("chat-0").state is State.READY
        assert await states(agent) == {"sql": "Loaded", "chess": "Loaded"}
        assert [replica.status(name) for name in ("tiny", "sql", "law")] == [200, 200, 404]
        replica.want({"chess": "acme/chess", "law": "/law"})
        await until(lambda: served() == ("chess", "law"))
        await until(lambda: replica.models() == ["chess", "law"])
        assert [replica.status(name) for name in ("sql", "law")] == [404, 200]
        replica.want({})
        await until(lambda: served() is None and replica.models() == [])
        assert await states(agent) == {}


async def test_adapter_that_cannot_be_loaded_does_not_keep_the_replica_from_serving(
    replica: Replica, directory: Any
) -> None:
    replica.want({"sql": "/sql", "bucket": "s3://bucket/law"})
    async with running(replica.config, file=replica.file) as agent:
        await until(lambda: agent.watch.ready)
        report = await report_of(agent)
        assert {one.name: one.state for one in report.adapters or ()} == {"sql": "Loaded", "bucket": "Failed"}
        assert "folders and repositories of the hub only" in (report.adapters or [])[1].message
        assert agent.adapters.served == ("sql",)


async def test_restarted_engine_gets_its_adapters_before_it_is_ready(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.want({"sql": "/sql"})
    async with running(replica.config, file=replica.file) as agent:
        await until(lambda: agent.watch.ready and replica.models() == ["sql"])
        go, ask = asyncio.Event(), agent.engine.want_adapters

        async def held_back(wanted: Any) -> Any:
            await go.wait()
            return await ask(wanted)

        monkeypatch.setattr(agent.engine, "want_adapters", held_back)
        replica.engine.kill()  # afterwards, so that no request is on its way to the next engine
        await until(lambda: not agent.watch.ready)
        replica.engine.start()
        await until(lambda: agent.watch.not_ready_reason == "its engine loads adapters")
        assert (replica.models(), agent.adapters.served) == ([], ())
        go.set()
        await until(lambda: agent.watch.ready)
        assert replica.models() == ["sql"]


async def test_file_that_cannot_be_read_changes_nothing(replica: Replica, caplog: pytest.LogCaptureFixture) -> None:
    replica.want({"sql": "/sql"})
    async with running(replica.config, file=replica.file) as agent:
        await until(lambda: agent.adapters.served == ("sql",))
        replica.file.write_text('{"adapters": [{"path": "/sql"}]}')
        await until(lambda: "its adapters can't be read" in caplog.text)
        await agent.adapters.check()
        assert agent.adapters.served == ("sql",)
        assert replica.models() == ["sql"]
    assert caplog.text.count("its adapters can't be read") == 1
