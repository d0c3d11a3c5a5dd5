"""List and watch against a server with the failures of a real one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.conditions import until

from plumage.incluster import follow
from plumage.incluster.api import ApiServer
from plumage.incluster.config import ApiServerConfig
from plumage.incluster.follow import Follower

PATH = "/apis/x/things"


class Server:
    """`listed` is the answer to a list. `events` has the lines of each watch, which then ends."""

    def __init__(self) -> None:
        self.listed: dict[str, Any] = {"metadata": {"resourceVersion": "5"}, "items": [thing("a", "5")]}
        self.events: list[list[dict[str, Any]]] = []
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.status = 200
        self.freeze = False
        self.thawed = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers["Authorization"])
        if self.status != 200:
            return web.json_response({"message": "things are forbidden"}, status=self.status)
        if "watch" not in request.query:
            self.lists.append(dict(request.query))
            return web.json_response(self.listed)
        self.watches.append(dict(request.query))
        answer = web.StreamResponse()
        await answer.prepare(request)
        for event in self.events.pop(0) if self.events else []:
            await answer.write(json.dumps(event).encode() + b"\n")
        if self.freeze:
            await self.thawed.wait()
        await asyncio.sleep(0.05)
        return answer


def thing(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}, **more}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries soon."""
    monkeypatch.setattr(follow, "SHORTEST", 0.02)
    monkeypatch.setattr(follow, "LONGEST", 0.05)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def follower(server: Server, tmp_path: Path) -> AsyncIterator[Follower]:
    app = web.Application()
    app.router.add_get(PATH, server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    (tmp_path / "token").write_text("first\n")
    config = ApiServerConfig(url=f"http://127.0.0.1:{port}/", token_file=tmp_path / "token")
    follower = Follower(
        ApiServer(config), PATH, "app=chat", lambda: None, what="things", rng=random.Random(1), watch_seconds=1
    )
    task = asyncio.create_task(follower.run())
    yield follower
    task.cancel()
    await asyncio.wait([task])
    server.thawed.set()
    await runner.cleanup()


async def test_watch_continues_from_the_last_seen_version(server: Server, follower: Follower) -> None:
    server.events = [
        [
            {"type": "ADDED", "object": thing("b", "6")},
            {"type": "MODIFIED", "object": thing("a", "7", spec=1)},
            {"type": "DELETED", "object": thing("b", "8")},
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}},
        ]
    ]
    await until(lambda: len(server.watches) > 1)
    assert follower.objects == {"a": thing("a", "7", spec=1)}
    assert (follower.listed, follower.error) == (True, None)
    assert len(server.lists) == 1
    assert server.lists[0]["labelSelector"] == "app=chat"
    assert [watch["resourceVersion"] for watch in server.watches[:2]] == ["5", "20"]
    assert server.watches[0]["allowWatchBookmarks"] == "true"


async def test_forgotten_version_leads_to_a_relist(server: Server, follower: Follower) -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    server.events = [[gone]]
    await until(lambda: server.watches)
    server.listed = {"metadata": {"resourceVersion": "90"}, "items": [thing("c", "80")]}
    await until(lambda: "c" in follower.objects)
    assert list(follower.objects) == ["c"]
    assert follower.error is None


async def test_lost_right_changes_nothing_and_is_logged(server: Server, follower: Follower, tmp_path: Path) -> None:
    await until(lambda: follower.listed)
    server.status = 403
    await until(lambda: follower.error is not None)
    assert "things are forbidden" in str(follower.error)
    assert list(follower.objects) == ["a"]
    (tmp_path / "token").write_text("second")
    server.status = 200
    await until(lambda: follower.error is None)
    assert server.tokens[0] == "Bearer first"
    assert server.tokens[-1] == "Bearer second"


async def test_frozen_watch_is_left(server: Server, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage.incluster.api.SLACK", 0.1)
    server.freeze = True
    before = len(server.watches) + 1
    await until(lambda: len(server.watches) == before)
    server.freeze = False
    await until(lambda: len(server.watches) > before)
    await until(lambda: follower.error is None)
    assert list(follower.objects) == ["a"]


@pytest.mark.parametrize("token", ["", "two\nlines", "é"])
async def test_impossible_token_is_refused(server: Server, follower: Follower, tmp_path: Path, token: str) -> None:
    await until(lambda: follower.listed)
    (tmp_path / "token").write_text(token)
    await until(lambda: follower.error is not None)
    assert "token" in str(follower.error)


async def test_answer_that_is_no_list_is_an_error(server: Server, follower: Follower) -> None:
    server.listed = {"items": [3]}
    server.events = [[{"type": "ERROR", "object": {"code": 410}}]] * 3
    await until(lambda: follower.error is not None and "no list" in follower.error)
