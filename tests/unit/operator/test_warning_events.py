"""Why pods do not start, from the cluster's events: few lists, and no reconcile fails without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from aiohttp import web
from support.kube_double import answered_by

from plumage_operator.controller.actions import EmitEvent
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.kube.client import KubeClient
from plumage_operator.kube.warning_events import WarningEvents
from plumage_operator.status.conditions import timestamp
from plumage_operator.status.diagnosis import pods_to_explain, stuck_pods

POOL = {
    "apiVersion": "inference.plumage.dev/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"name": "chat", "namespace": "team", "uid": "1"},
}


def event(pod: str, reason: str, at: int, **more: Any) -> dict[str, Any]:
    fields = {"reason": reason, "message": f"{reason} of {pod}", "lastTimestamp": timestamp(at)}
    return {"metadata": {"name": f"{pod}.{at}"}, "involvedObject": {"name": pod}, **fields, **more}


class Server:
    """events: in pages of two. status: of every answer."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.status = 200
        self.asked: list[dict[str, str]] = []
        self.answering: Callable[[], None] = lambda: None

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        self.answering()
        if self.status != 200:
            return web.json_response({"reason": "Timeout", "message": "etcd is away"}, status=self.status)
        begin = int(request.query.get("continue") or 0)
        more = str(begin + 2) if begin + 2 < len(self.events) else ""
        page = self.events[begin : begin + 2]
        return web.json_response({"kind": "EventList", "metadata": {"continue": more}, "items": page})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[KubeClient]:
    async with answered_by(server.answer) as api:
        yield api


def reasons(warnings: Iterable[Any]) -> list[tuple[str, str]]:
    return [(one.name, one.reason) for one in warnings]


async def test_pools_of_a_namespace_share_a_list(server: Server, api: KubeClient) -> None:
    now = [0.0]
    warnings = WarningEvents(api, lambda: now[0], lambda _namespace, pod: pod.startswith("chat"))
    server.events = [event(f"chat-{number}", "FailedMount", number) for number in range(5)]
    found = await asyncio.gather(*(warnings.list_for("team", [f"chat-{number}"]) for number in range(5)))
    assert [reasons(one) for one in found] == [[(f"chat-{number}", "FailedMount")] for number in range(5)]
    assert [one.get("continue") for one in server.asked] == [None, "2", "4"]
    assert {one["fieldSelector"] for one in server.asked} == {"involvedObject.kind=Pod,type=Warning"}
    now[0] = 6.0
    await warnings.list_for("team", ["chat-0"])
    assert len(server.asked) == 6, "a list that is some seconds old is requested again"
    await warnings.list_for("other", ["chat-0"])
    assert len(server.asked) == 9, "another namespace has a list of its own"


async def test_slow_list_serves_once_it_arrives(server: Server, api: KubeClient) -> None:
    now = [0.0]
    warnings = WarningEvents(api, lambda: now[0], lambda _namespace, _pod: True)
    server.events = [event("chat-0", "FailedMount", 1)]

    def slow() -> None:
        now[0] += 7.0

    server.answering = slow
    for _ in range(2):
        assert reasons(await warnings.list_for("team", ["chat-0"])) == [("chat-0", "FailedMount")]
    assert len(server.asked) == 1


async def test_list_for_returns_the_newest_three_events_of_our_pods(server: Server, api: KubeClient) -> None:
    warnings = WarningEvents(api, lambda: 0.0, lambda _namespace, pod: pod.startswith("chat"))
    newest = event("chat-0", "E", 0, lastTimestamp=None, series={"lastObservedTime": "1970-01-01T00:01:00.000000Z"})
    server.events = [
        newest,
        *(event("chat-0", reason, at) for reason, at in zip("DACB", (40, 10, 30, 20), strict=True)),
    ]
    server.events.append(event("foreign", "FailedMount", 50))
    assert reasons(await warnings.list_for("team", ["chat-0", "foreign"])) == [("chat-0", one) for one in "EDC"]


@pytest.mark.parametrize("status", [403, 504])
async def test_unavailable_events_fail_nothing_and_are_requested_seldom(
    server: Server, api: KubeClient, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    server.status, now = status, [0.0]
    warnings = WarningEvents(api, lambda: now[0], lambda _namespace, _pod: True)
    for at in (0.0, 6.0, 29.0):
        now[0] = at
        assert await warnings.list_for("team", ["chat-0"]) == ()
    assert len(server.asked) == 1, "each pool of the namespace would ask a failing server"
    now[0] = 30.0
    await warnings.list_for("team", ["chat-0"])
    assert len(server.asked) == 2
    event = EmitEvent("Normal", "Settled", "all is well")
    await EventRecorder(api, lambda: 0.0, "one").record(POOL, event)
    assert "list the events of team" in caplog.text
    assert "team/chat: the event could not be written: Settled" in caplog.text


@pytest.mark.parametrize(("age", "late"), [(1.0, False), (4.9, False), (5.0, True), (3600.0, True), (-3600.0, True)])
def test_pod_placed_just_now_is_starting(age: float, late: bool) -> None:
    """Below 0 this clock is behind the cluster's."""
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(1_790_000_000)}
    pod = {"kind": "Pod", "metadata": {"name": "chat-0"}, "status": {"conditions": [placed]}}
    assert pods_to_explain(stuck_pods([pod]), 1_790_000_000 + age) == (["chat-0"] if late else [])
