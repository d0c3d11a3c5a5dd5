"""Refused writes are retried, counted and logged once, those of a status too. A small API server refuses them.

tests/integration/operator covers which children's refusals appear in the status.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from support.kube_double import answered_by
from support.operator_world import CONFIG, NOW, pool_object

from plumage_operator import kinds as integrations
from plumage_operator.cache.store import Store
from plumage_operator.controller.actions import Apply, Delete, EmitEvent
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.controller.perform import Performer
from plumage_operator.controller.queue import WorkQueue
from plumage_operator.controller.reconcile import Key, Reconciler
from plumage_operator.controller.watch import INTEGRATIONS
from plumage_operator.kinds import KINDS
from plumage_operator.kube.client import KubeClient
from plumage_operator.kube.warning_events import WarningEvents
from plumage_operator.observability.metrics import Metrics
from plumage_operator.observed import key_of

VALUES = Path(__file__).parents[3] / "charts" / "plumage" / "values.yaml"
SERVED = {"models": [{"name": "chat", "pools": [{"poolRef": {"name": "chat"}}]}]}
GATEWAY = {**pool_object(SERVED, name="front", uid="gateway-uid"), "kind": "InferenceGateway"}
POOL_KEY, GATEWAY_KEY = ("InferencePool", "default", "chat"), ("InferenceGateway", "default", "front")


class Server:
    """refused: a part of the refused paths. refusal: its message. events: the events that it received, by method and
    reason.
    """

    def __init__(self) -> None:
        self.refused = "/status"
        self.refusal = "User plumage cannot {} it"
        self.versions = 10
        self.events: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        if self.refused and self.refused in request.path:
            status = {"reason": "Forbidden", "message": self.refusal.format(request.method.lower())}
            return web.json_response(status, status=403)
        if request.method == "GET":
            return web.json_response({"reason": "NotFound"}, status=404)
        body = await request.json()
        if "/events" in request.path:
            self.events.append((request.method, body.get("reason", "")))
        self.versions += 1
        body.setdefault("metadata", {})["resourceVersion"] = str(self.versions)
        return web.json_response(body, status=201)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[KubeClient]:
    async with answered_by(server.answer) as api:
        yield api


@pytest.fixture
def performer(api: KubeClient, store: Store) -> Performer:
    return Performer(api, EventRecorder(api, lambda: NOW, "one"), store)


@pytest.fixture
def reconciler(api: KubeClient, performer: Performer, metrics: Metrics, store: Store) -> Reconciler:
    queue = WorkQueue[Key](lambda: 0.0, lambda: 1.0)
    store.put(pool_object())
    store.put(GATEWAY)
    warnings = WarningEvents(api, lambda: 0.0, lambda _: True)
    return Reconciler(store, queue, warnings, performer, CONFIG, metrics, clock=lambda: NOW)


@pytest.mark.parametrize("key", [POOL_KEY, GATEWAY_KEY])
async def test_refused_status_is_retried_counted_and_logged_once(
    key: Key, server: Server, reconciler: Reconciler, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        assert await reconciler.reconcile(key) == 30
    line = "{} {}/{}: ChildRefused: the API server refuses {} status: User plumage cannot patch it".format(*key, key[0])
    assert caplog.messages == [line]
    assert metrics.refusals == {key[0]: 2}
    assert f'plumage_operator_refusals_total{{kind="{key[0]}"}} 2' in metrics.page(pools=1, waiting=0, oldest=0)
    server.refused = ""
    assert await reconciler.reconcile(key) != 30
    assert caplog.messages == [line]


@pytest.mark.parametrize(("key", "thing"), [(POOL_KEY, pool_object()), (GATEWAY_KEY, GATEWAY)])
async def test_events_of_a_refused_status_are_emitted_once(
    key: Key, thing: dict[str, Any], server: Server, store: Store, reconciler: Reconciler
) -> None:
    await reconciler.reconcile(key)
    first = list(server.events)
    assert first
    assert {method for method, _ in first} == {"POST"}
    await reconciler.reconcile(key)
    assert server.events == first
    store.put(changed(thing, 5, spec={"replicas": "many"}))  # nothing readable
    for _ in range(2):
        await reconciler.reconcile(key)
    assert server.events[len(first) :] == [("POST", "InvalidSpec")], "the change meanwhile"
    server.refused = ""
    assert await reconciler.reconcile(key) != 30
    assert len(server.events) == len(first) + 1
    store.put(changed(thing, 900, uid="another"))
    server.refused = "/status"
    await reconciler.reconcile(key)
    server.events.clear()
    store.put(changed(thing, 901, uid="a-third"))
    await reconciler.reconcile(key)
    assert server.events == first, "the status of its namesake does not count"


def changed(thing: dict[str, Any], version: int, spec: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    metadata = {**thing["metadata"], "resourceVersion": str(version), **more}
    return {**thing, "metadata": metadata, "spec": spec or thing["spec"]}


async def test_refused_child_is_counted_and_logged(
    server: Server, reconciler: Reconciler, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server.refused = "/serviceaccounts"
    assert await reconciler.reconcile(POOL_KEY) == 30
    assert set(metrics.refusals) == {"ServiceAccount"}
    assert len(caplog.messages) == metrics.refusals["ServiceAccount"]
    assert all("the API server refuses ServiceAccount chat-" in message for message in caplog.messages)


async def test_event_of_a_child_is_written_only_if_the_child_was(server: Server, performer: Performer) -> None:
    child = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat-router", "namespace": "default"}}
    actions = [
        Apply(child, known=False),
        EmitEvent("Normal", "ChildRecreated", "Service chat-router was deleted and is created again", key_of(child)),
    ]
    server.refused, server.refusal = "/services", "unable to create new content because it is being terminated"
    (refusal,) = await performer.perform(pool_object(), actions)
    assert refusal.reason == "NamespaceTerminating"
    assert server.events == []
    server.refused = ""
    assert await performer.perform(pool_object(), actions) == ()
    assert server.events == [("POST", "ChildRecreated")]


async def test_event_in_a_terminating_namespace_is_dropped_without_a_line(
    server: Server, performer: Performer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server.refused, server.refusal = "/events", "unable to create new content because it is being terminated"
    await performer.perform(pool_object(), [EmitEvent("Normal", "RollingOut", "0 of 1")])
    assert caplog.messages == []
    server.refusal = "no right"
    await performer.perform(pool_object(), [EmitEvent("Normal", "RollingOut", "0 of 1")])
    assert ["the event could not be written: RollingOut" in message for message in caplog.messages] == [True]


NO_RIGHT = (
    '{0}.{1} is forbidden: User "system:serviceaccount:plumage-system:plumage-operator" cannot create resource "{0}" '
    'in API group "{1}" in the namespace "default"'
)
"""As an API server says it: tests/integration/operator sees one do so."""


async def refusal_of(kind: str, server: Server, performer: Performer, message: str) -> str:
    """What is reported of a child of that kind."""
    api_version, plural = KINDS[kind]
    server.refused, server.refusal = f"/{plural}", message.format(plural, api_version.split("/")[0])
    metadata = {"name": "chat-router", "namespace": "default"}
    apply = Apply({"apiVersion": api_version, "kind": kind, "metadata": metadata}, known=False)
    (refusal,) = await performer.perform(pool_object(), [apply])
    assert refusal.reason == "ChildRefused"
    assert server.refusal in refusal.message
    return refusal.message


@pytest.mark.parametrize("switch", INTEGRATIONS)
async def test_missing_optional_right_names_its_switch(switch: str, server: Server, performer: Performer) -> None:
    assert yaml.safe_load(VALUES.read_text())["integrations"][switch] is False, "so that users find it"
    group, version, plural = INTEGRATIONS[switch]
    kind = next(kind for kind, where in KINDS.items() if where == (f"{group}/{version}", plural))
    reported = await refusal_of(kind, server, performer, NO_RIGHT)
    assert f"helm upgrade with integrations.{switch}=true" in reported
    assert "and delete the object that was made for it" in reported
    policy = 'admission webhook "policy.example" denied the request: no {0} here'
    assert "integrations" not in await refusal_of(kind, server, performer, policy)


@pytest.mark.parametrize("integration", integrations.INTEGRATIONS, ids=lambda one: one.kind)
async def test_unwanted_child_without_the_delete_right_is_reported(
    integration: integrations.Integration, server: Server, performer: Performer
) -> None:
    """A custom role may let the operator only read them. Removing the field would then change nothing."""
    server.refused, server.refusal = f"/{integration.plural}", NO_RIGHT.replace("create", "delete").format("a", "b")
    (refusal,) = await performer.perform(pool_object(), [Delete(integration.kind, "chat-router", "uid")])
    assert "The pool no longer asks for it: delete it, or give" in refusal.message
    assert f"helm upgrade with integrations.{integration.switch}=true" in refusal.message
    assert "drop spec" not in refusal.message


async def test_no_other_kind_has_a_switch(server: Server, performer: Performer) -> None:
    assert "integrations" not in await refusal_of("Service", server, performer, NO_RIGHT)
