"""The number of requests per child, and that no object of another owner is taken over. A small API server counts the
requests.

tests/integration/operator covers the same calls on a real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from support.kube_double import answered_by
from support.operator_world import CONFIG, World, pool_object

from plumage_operator.cache.store import Store
from plumage_operator.controller.actions import Apply
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.controller.perform import Performer
from plumage_operator.controller.plan import plan_changes
from plumage_operator.kube.errors import ConflictError
from plumage_operator.status.conditions import Reason

OURS = {"manager": "plumage", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}


class Server:
    """objects: by path. asked: the requests in order, by method and content."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.quota = False
        self.refused: set[str] = set()  # roles that nobody may bind
        self.kept: dict[str, str] = {}  # labels of a selector that belong to others, and so outlive an apply
        self.removed: list[str] = []  # by JSON patch

    def version(self, path: str) -> str:
        return str(self.objects[path]["metadata"]["resourceVersion"])

    async def answer(self, request: web.Request) -> web.Response:
        steps = request.content_type.removeprefix("application/").removesuffix("+yaml").removesuffix("+json")
        self.asked.append(request.method if request.method in ("DELETE", "GET", "POST") else steps)
        body = await request.json() if request.method != "GET" else {}
        if request.method == "POST" and body.get("roleRef", {}).get("name") in self.refused:
            return web.json_response({"reason": "Forbidden", "message": "not yours to bind"}, status=403)
        if "dryRun" in request.query:
            assert "name" not in body["metadata"], "that name is taken"
            return web.json_response(body, status=201)
        if request.method == "POST":
            return self._create(f"{request.path}/{body['metadata']['name']}", body)
        live = self.objects.get(request.path)
        if request.method == "DELETE":
            assert live is not None
            assert body["preconditions"]["uid"] == live["metadata"]["uid"]
            return web.json_response(self.objects.pop(request.path))
        if request.method == "GET":
            return (
                web.json_response(live, status=200) if live else web.json_response({"reason": "NotFound"}, status=404)
            )
        if steps == "json-patch":
            assert live is not None
            version = {"path": "/metadata/resourceVersion", "value": self.version(request.path)}
            assert body[-1] == {"op": "replace", **version}
            self.removed += [one["path"] for one in body if one["op"] == "remove"]
            if body[0]["op"] == "replace":
                live["metadata"]["managedFields"] = body[0]["value"]
            return web.json_response(live)
        spec = body.get("spec")
        if self.kept:
            spec = {**spec, "selector": {"matchLabels": {**spec["selector"]["matchLabels"], **self.kept}}}
        self.objects[request.path] = {**body, "metadata": {**body["metadata"], "resourceVersion": "9"}, "spec": spec}
        return web.json_response(self.objects[request.path])

    def _create(self, path: str, body: dict[str, Any]) -> web.Response:
        if self.quota:
            return web.json_response({"reason": "Conflict"}, status=409)
        if path in self.objects:
            return web.json_response({"reason": "AlreadyExists"}, status=409)
        more = {"resourceVersion": "7", "managedFields": [OURS], "uid": "u"}
        self.objects[path] = {**body, "metadata": {**body["metadata"], **more}}
        return web.json_response(self.objects[path], status=201)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def performer(server: Server) -> AsyncIterator[Performer]:
    async with answered_by(server.answer) as api:
        yield Performer(api, EventRecorder(api, lambda: 0.0, "one"), Store())


def creation() -> tuple[dict[str, Any], list[Apply]]:
    """A pool, and the actions that create its children."""
    world = World()
    return world.pool, [action for action in plan_changes(world.observed(), CONFIG) if isinstance(action, Apply)]


def resource_path(apply: Apply) -> str:
    assert apply.child["kind"] == "ServiceAccount"
    return f"/api/v1/namespaces/default/serviceaccounts/{apply.child['metadata']['name']}"


async def test_new_pool_takes_one_request_per_child(server: Server, performer: Performer) -> None:
    pool, actions = creation()
    assert await performer.perform(pool, actions) == ()
    assert server.asked == ["POST"] * 17
    assert len(server.objects) == 17


async def test_changed_child_takes_over_its_fields_once_and_is_then_applied(
    server: Server, performer: Performer
) -> None:
    pool, (first, *_) = creation()
    await performer.perform(pool, [first])
    again = Apply(first.child, known=True)
    await performer.perform(pool, [again])
    assert server.asked == ["POST", "GET", "json-patch", "apply-patch"]
    await performer.perform(pool, [again])
    assert server.asked[4:] == ["GET", "apply-patch"]


async def test_existing_child_is_applied_if_the_pool_owns_it(server: Server, performer: Performer) -> None:
    pool, (first, *_) = creation()
    await performer.perform(pool, [first])
    await performer.perform(pool, [first])
    assert server.asked == ["POST", "POST", "GET", "json-patch", "apply-patch"]


@pytest.mark.parametrize("known", [False, True])
async def test_other_owners_object_is_left_alone(server: Server, performer: Performer, known: bool) -> None:
    pool, (first, *_) = creation()
    theirs = {"kind": "ServiceAccount", "metadata": {"name": first.child["metadata"]["name"], "resourceVersion": "3"}}
    server.objects[resource_path(first)] = theirs
    (refusal,) = await performer.perform(pool, [Apply(first.child, known=known)])
    assert refusal.reason is Reason.NAME_TAKEN
    assert server.objects[resource_path(first)] is theirs
    assert "apply-patch" not in server.asked


async def test_child_deleted_without_an_event_is_created_again(server: Server, performer: Performer) -> None:
    pool, (first, *_) = creation()
    await performer.perform(pool, [Apply(first.child, known=True)])
    assert server.asked == ["GET", "POST"]


async def test_other_conflict_is_retried_later(server: Server, performer: Performer) -> None:
    pool, (first, *_) = creation()
    server.quota = True
    with pytest.raises(ConflictError):
        await performer.perform(pool, [first])


@pytest.mark.parametrize("known", [False, True])
async def test_binding_of_another_role_is_recreated(server: Server, performer: Performer, known: bool) -> None:
    """The chart's `rbac.routerRole` changed, and the API server allows no change of a binding."""
    pool, actions = creation()
    (binding,) = [one for one in actions if one.child["kind"] == "RoleBinding"]
    await performer.perform(pool, [binding])
    (live,) = server.objects.values()
    live["roleRef"] = {**live["roleRef"], "name": "of-before"}
    server.asked.clear()
    assert await performer.perform(pool, [Apply(binding.child, known=known)]) == ()
    assert server.asked[-3:] == ["POST", "DELETE", "POST"], "a dry run, then the replacement"
    (made,) = server.objects.values()
    assert made["roleRef"]["name"] == "plumage-router"
    del live["metadata"]["ownerReferences"], live["metadata"]["annotations"]
    server.objects = {path: {**live, "roleRef": {}} for path in server.objects}
    server.asked.clear()
    (refusal,) = await performer.perform(pool, [Apply(binding.child, known=known)])
    assert refusal.reason is Reason.NAME_TAKEN, "the object of another owner is left alone"
    assert "DELETE" not in server.asked


async def test_binding_stays_if_its_replacement_would_be_refused(server: Server, performer: Performer) -> None:
    pool, actions = creation()
    (binding,) = [one for one in actions if one.child["kind"] == "RoleBinding"]
    await performer.perform(pool, [binding])
    (live,) = server.objects.values()
    live["roleRef"] = {**live["roleRef"], "name": "of-before"}
    server.refused = {"plumage-router"}
    (refusal,) = await performer.perform(pool, [Apply(binding.child, known=True)])
    assert (refusal.reason, refusal.kind) == (Reason.CHILD_REFUSED, "RoleBinding")
    assert list(server.objects.values()) == [live]
    server.refused = set()
    assert await performer.perform(pool, [Apply(binding.child, known=True)]) == ()
    assert [one["roleRef"]["name"] for one in server.objects.values()] == ["plumage-router"]


async def test_additions_that_outlive_an_apply_are_removed(server: Server, performer: Performer) -> None:
    """The definition of the Gateway API's InferencePool does not call its selector atomic."""
    world = World(pool_object({**pool_object()["spec"], "router": {"endpointPicker": {"inferencePool": {}}}}))
    actions = [one for one in plan_changes(world.observed(), CONFIG) if isinstance(one, Apply)]
    (published,) = [one for one in actions if one.child["kind"] == "InferencePool"]
    await performer.perform(world.pool, [published])
    again = Apply(published.child, known=True)
    await performer.perform(world.pool, [again])
    server.asked.clear()
    await performer.perform(world.pool, [again])
    assert (server.asked, server.removed) == (["GET", "apply-patch"], [])
    server.asked.clear()
    server.kept = {"example.com/theirs": "1"}
    assert await performer.perform(world.pool, [again]) == ()
    assert server.asked == ["GET", "apply-patch", "json-patch"]
    assert server.removed == ["/spec/selector/matchLabels/example.com~1theirs"]
