"""Long lists are read page by page, and of metadata only the needed fields are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration

from plumage_operator.kube.client import KubeClient
from plumage_operator.kube.errors import GoneError, UnavailableError


class Lists:
    """An API server with five Services in pages of two. expired: its later pages do not exist any more."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.expired = False

    async def answer(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        self.asked.append(query)
        if request.path.endswith("/unknowns"):
            return web.json_response({"reason": "NotFound"}, status=404)
        if request.path.endswith("/pods"):  # none: as an API server writes it
            return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": None})
        start = int(query.get("continue", "0"))
        if start and self.expired:
            return web.json_response({"reason": "Expired", "message": "too old"}, status=410)
        items = [self._item(number) for number in range(start, min(start + 2, 5))]
        place = {"continue": str(start + 2)} if start + 2 < 5 else {}
        return web.json_response({"kind": "ServiceList", "metadata": place, "items": items})

    @staticmethod
    def _item(number: int) -> dict[str, Any]:
        fields = [{"manager": "somebody", "fieldsV1": {"f:spec": {}}}]
        named = {"name": f"s{number}", "namespace": "default", "resourceVersion": str(number)}
        return {"metadata": {**named, "managedFields": fields}, "spec": {"type": "ClusterIP"}}


@pytest.fixture
def lists() -> Lists:
    return Lists()


@pytest.fixture
async def api(lists: Lists) -> AsyncIterator[KubeClient]:
    app = web.Application()
    app.router.add_get("/{path:.*}", lists.answer)
    async with TestServer(app) as server:
        configuration = Configuration()
        configuration.host = str(server.make_url("")).rstrip("/")
        async with KubeClient(configuration) as api:
            yield api


async def test_all_pages_are_read_one_at_a_time(api: KubeClient, lists: Lists) -> None:
    pages = [page async for page in api.list_pages("v1", "services", None, "pool")]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert pages[0][0]["kind"] == "Service"
    assert pages[0][0]["apiVersion"] == "v1"
    assert [query.get("continue") for query in lists.asked] == [None, "2", "4"]
    assert all(query["limit"] and query["labelSelector"] == "pool" for query in lists.asked)


async def test_versions_keep_only_names_and_numbers(api: KubeClient) -> None:
    found = await api.list_versions("v1", "services", "default", "")
    assert found[4] == {"metadata": {"name": "s4", "namespace": "default", "resourceVersion": "4"}}
    assert len(found) == 5


async def test_list_of_no_objects_is_empty(api: KubeClient) -> None:
    assert await api.list_versions("v1", "pods", None, "") == []
    assert [page async for page in api.list_pages("v1", "pods", None, "")] == [[]]


async def test_unknown_kind_is_an_empty_list_without_versions(api: KubeClient) -> None:
    assert [page async for page in api.list_pages("v1", "unknowns", None, "")] == []
    with pytest.raises(GoneError):
        await api.list_versions("v1", "unknowns", None, "")


async def test_expired_list_may_be_requested_again(api: KubeClient, lists: Lists) -> None:
    lists.expired = True
    with pytest.raises(UnavailableError):
        await api.list_versions("v1", "services", None, "")
