"""The Secret with a pool's own keys: when it is made, who mounts it, and that it is never read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from support.kube_double import answered_by
from support.operator_world import CONFIG, NOW, World, pool_object

from plumage.cluster import OURS, PAUSE
from plumage_operator.cache.store import Store
from plumage_operator.controller.actions import CreateSecret
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.controller.perform import Performer
from plumage_operator.controller.plan import plan_key_secret
from plumage_operator.controller.queue import WorkQueue
from plumage_operator.controller.reconcile import Key, Reconciler
from plumage_operator.kube.errors import ConflictError
from plumage_operator.kube.warning_events import WarningEvents
from plumage_operator.observability.metrics import Metrics
from plumage_operator.resources import PoolContext, build_children
from plumage_operator.resources.context import read_pool

NAME = "chat-keys-pool-uid"
VLLM = {"model": {"uri": "hf://org/model"}, "engine": {}}
WAITING = {
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
    "containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}],
}


def deployments(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """The pods of each component."""
    made = build_children(PoolContext(read_pool(pool_object(spec)), CONFIG, 2))
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in made if one["kind"] == "Deployment"}


def mounting(pod: dict[str, Any]) -> set[str]:
    """The containers that mount the keys."""
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    mounted = {one["name"]: [mount["name"] for mount in one.get("volumeMounts", ())] for one in containers}
    return {name for name, mounts in mounted.items() if "keys-of-pool" in mounts}


def test_secret_is_made_before_the_pods_and_again_when_they_wait_for_it() -> None:
    world = World()
    (action,) = plan_key_secret(world.observed(), CONFIG)
    assert isinstance(action, CreateSecret)
    assert action.secret["metadata"]["name"] == NAME
    assert OURS.items() <= action.secret["metadata"]["labels"].items()
    assert action.secret["metadata"]["ownerReferences"][0]["uid"] == "pool-uid"
    assert "data" not in action.secret
    assert action.entries == ("engine-key", "salt-key")
    world.converge()
    assert plan_key_secret(world.observed(), CONFIG) == ()
    next(iter(world.pods.values()))["status"] = WAITING
    assert plan_key_secret(world.observed(), CONFIG) == (action,)


@pytest.mark.parametrize(
    ("spec", "metadata"),
    [
        ({**pool_object()["spec"], "keysRef": {"name": "mine"}}, {}),
        (None, {"annotations": {PAUSE: "true"}}),
        (None, {"deletionTimestamp": "2027-01-01T00:00:00Z"}),
        ({"model": {}}, {}),
    ],
    ids=["a secret of the user", "paused", "deleted", "wrong"],
)
def test_no_secret_is_made_without_need(spec: dict[str, Any] | None, metadata: dict[str, Any]) -> None:
    assert plan_key_secret(World(pool_object(spec, **metadata)).observed(), CONFIG) == ()


def test_engines_agents_and_routers_mount_the_secret_and_the_directory_does_not() -> None:
    pods = deployments()
    assert {name: mounting(pod) for name, pod in pods.items()} == {
        "chat-engine": {"agent", "engine"}, "chat-router": {"router"}, "chat-directory": set(),
    }  # fmt: skip
    for name in ("chat-engine", "chat-router"):
        (volume,) = (one for one in pods[name]["volumes"] if one["name"] == "keys-of-pool")
        assert volume["secret"] == {"secretName": NAME, "defaultMode": 0o440}


def test_vllm_has_its_key_from_the_environment_and_no_salt() -> None:
    pod = deployments(VLLM)["chat-engine"]
    assert mounting(pod) == {"agent"}
    (engine,) = pod["containers"]
    (variable,) = (one for one in engine["env"] if one["name"] == "VLLM_API_KEY")
    assert variable["valueFrom"] == {"secretKeyRef": {"name": NAME, "key": "engine-key"}}
    assert "--api-key" not in str([*engine["command"], *engine["args"]])


def test_secret_of_the_user_is_mounted_instead() -> None:
    pods = deployments({**VLLM, "keysRef": {"name": "mine"}})
    assert NAME not in str(pods)
    assert {"name": "mine", "key": "engine-key"} in [
        one.get("valueFrom", {}).get("secretKeyRef") for one in pods["chat-engine"]["containers"][0]["env"]
    ]


@dataclass
class _Server:
    """An API server that stores Secrets, and echoes other objects."""

    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    conflict: str = "AlreadyExists"

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"reason": "NotFound"}, status=404)
        body = await request.json()
        if "/secrets" in request.path:
            self.asked.append((request.method, request.path))
            if body["metadata"]["name"] in self.secrets:
                return web.json_response({"reason": self.conflict, "message": "it exists"}, status=409)
            self.secrets[body["metadata"]["name"]] = body
        return web.json_response(body, status=201)


@pytest.fixture
def server() -> _Server:
    return _Server()


@pytest.fixture
async def performer(server: _Server) -> AsyncIterator[Performer]:
    async with answered_by(server.answer) as api:
        yield Performer(api, EventRecorder(api, lambda: NOW, "one"), Store())


async def test_key_secret_is_random_and_never_overwritten(performer: Performer, server: _Server) -> None:
    actions = plan_key_secret(World().observed(), CONFIG)
    assert await performer.perform(pool_object(), actions) == ()
    first = dict(server.secrets[NAME]["stringData"])
    assert set(first) == {"engine-key", "salt-key"}
    assert len(set(first.values())) == 2
    assert all(len(value) >= 43 for value in first.values()), "256 bits"
    assert await performer.perform(pool_object(), actions) == ()
    assert server.secrets[NAME]["stringData"] == first
    assert {method for method, _ in server.asked} == {"POST"}, "it is neither read nor changed"
    del server.secrets[NAME]
    await performer.perform(pool_object(), actions)
    assert server.secrets[NAME]["stringData"] != first


async def test_other_conflict_is_retried(performer: Performer, server: _Server) -> None:
    server.secrets[NAME] = {}
    server.conflict = "Conflict"
    with pytest.raises(ConflictError):
        await performer.perform(pool_object(), plan_key_secret(World().observed(), CONFIG))


async def test_pods_that_wait_long_cost_one_request_in_ten_seconds(server: _Server) -> None:
    now = NOW
    async with answered_by(server.answer) as api:
        store, queue = Store(), WorkQueue[Key](lambda: 0.0, lambda: 1.0)
        store.put(pool_object())
        performer = Performer(api, EventRecorder(api, lambda: now, "one"), store)
        warnings = WarningEvents(api, lambda: 0.0, lambda _: True)
        reconciler = Reconciler(store, queue, warnings, performer, CONFIG, Metrics(), clock=lambda: now)
        for child in build_children(PoolContext(read_pool(pool_object()), CONFIG, 2)):
            store.put(child)
        labels = {"inference.plumage.dev/pool": "chat", "app.kubernetes.io/component": "engine"}
        metadata = {"name": "chat-engine-0", "namespace": "default", "labels": {**OURS, **labels}}
        store.put({"kind": "Pod", "metadata": metadata, "status": WAITING})
        for _ in range(3):
            await reconciler.reconcile(("InferencePool", "default", "chat"))
        assert len(server.asked) == 1
        now += 10.5
        await reconciler.reconcile(("InferencePool", "default", "chat"))
        assert len(server.asked) == 2
        now -= 3600
        await reconciler.reconcile(("InferencePool", "default", "chat"))
        assert len(server.asked) == 3, "a clock that was set back delays nothing"
