"""The operator's first lists. An API server that just started refuses them for a while; a missing right is permanent.

Here a small server refuses a fixed number of requests. tests/integration/operator has a real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from support.kube_double import answered_by
from support.operator_world import CONFIG, pool_object

from plumage_operator import manager
from plumage_operator.controller.watch import WATCHED
from plumage_operator.kube.client import KubeClient
from plumage_operator.kube.errors import RefusedError
from plumage_operator.manager import Manager
from plumage_operator.options import Options


class Server:
    """refusals: requests that it refuses before it answers."""

    def __init__(self) -> None:
        self.refusals = 0

    async def answer(self, request: web.Request) -> web.Response:
        if self.refusals:
            self.refusals -= 1
            status = {"reason": "Forbidden", "message": "User plumage cannot list it"}
            return web.json_response(status, status=403)
        items = [pool_object()] if request.path.endswith("inferencepools") else []
        return web.json_response({"kind": "List", "metadata": {}, "items": items})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[KubeClient]:
    async with answered_by(server.answer) as api:
        yield api


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Manager:
    monkeypatch.setattr(manager, "_FIRST_WAIT", 0.0)
    operator = Manager(Options(CONFIG, "first"))
    operator.heartbeats.expect("event loop", 60.0)
    return operator


async def test_fill_retries_after_a_short_refusal(
    server: Server, api: KubeClient, operator: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    server.refusals = 2
    await operator._fill(api, WATCHED)
    assert operator.store.pools() == [("default", "chat")]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "retrying in 0 s: User plumage cannot list it" in caplog.text


def test_page_has_the_conditions_for_alerts(operator: Manager) -> None:
    """Ready repeats the others, which are left out."""
    types = ("Ready", "Accepted", "EngineReady", "AdaptersReady")
    conditions = [{"type": one, "status": "False", "reason": "NoGpu"} for one in types]
    operator.store.put({**pool_object(), "status": {"conditions": conditions}})
    lines = [line for line in operator._page().splitlines() if line.startswith("plumage_operator_condition{")]
    assert lines == [
        'plumage_operator_condition{kind="InferencePool",object_namespace="default",name="chat",'
        f'condition="{type_}",status="False",reason="NoGpu"}} 1'
        for type_ in ("Ready", "AdaptersReady")
    ]


async def test_fill_raises_after_repeated_refusals(server: Server, api: KubeClient, operator: Manager) -> None:
    server.refusals = 1_000
    with pytest.raises(RefusedError, match="cannot list"):
        await operator._fill(api, WATCHED)
    assert server.refusals == 1_000 - 6
