"""The client of the API server: a few verbs on plain objects.

Every call has a timeout. The type of an error says whether to retry: see `errors`. The client is `kubernetes.aio`'s, by
its one generic call, because its models would parse each answer twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from kubernetes.aio.client.api_client import ApiClient

from plumage.api_server import StatusObject, read_refusal
from plumage.cluster import MANAGED_BY
from plumage_operator.kinds import KINDS, MADE_ONCE
from plumage_operator.kube.errors import ApiError, ConflictError, GoneError, RefusedError, UnavailableError
from plumage_operator.observed import Object, key_of, meta

__all__ = ["KubeClient", "resource_path"]

TIMEOUT: Final = 20.0  # seconds for one answer

_CREATED: Final = {**KINDS, **MADE_ONCE}

_AT_ONCE: Final = 16  # requests in flight: the API server's own flow control does the rest

_PAGE: Final = 200  # objects; a pod of ours is 12 KB of JSON, and 60 KB once it is parsed

_JSON: Final = "application/json"

_APPLY: Final = "application/apply-patch+yaml"

_MERGE: Final = "application/merge-patch+json"

_STEPS: Final = "application/json-patch+json"

_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_SCHEMA_MISMATCH: Final = "failed to create typed patch object"
"""How the API server starts the message that an applied object does not fit the schema; status 500, no reason."""


class KubeClient:
    """Use it as an async context manager, in one event loop. configuration: of `credentials`."""

    def __init__(self, configuration: Any) -> None:
        self._client: Any = ApiClient(configuration)  # untyped upstream
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def create(self, child: Object) -> dict[str, Any]:
        """Creates an object. Raises ConflictError if one of its name exists. The API server refuses unknown fields, as
        in `apply`.
        """
        path = resource_path(*_CREATED[key_of(child)[0]], str(meta(child)["namespace"]))
        query = {"fieldManager": MANAGED_BY, "fieldValidation": "Strict"}
        return await self.request("POST", path, query=query, body=child)

    async def apply(self, child: Object) -> dict[str, Any]:
        """Forced server-side apply: the operator owns the fields that it writes, even if others wrote them before."""
        query = {"fieldManager": MANAGED_BY, "force": "true"}
        return await self.request("PATCH", _path_of(child), query=query, body=child, content=_APPLY)

    async def replace_managed_fields(self, child: Object, entries: Sequence[Mapping[str, Any]]) -> None:
        """Replaces `managedFields` of an object as it was read. Raises ConflictError if the object changed since."""
        await self._patch_as_read(child, [{"op": "replace", "path": "/metadata/managedFields", "value": [*entries]}])

    async def remove_fields(self, child: Object, pointers: Sequence[str]) -> dict[str, Any]:
        """Removes fields of an object as it was read, and returns it. pointers: JSON pointers of these fields. Raises
        ConflictError if the object changed since.
        """
        return await self._patch_as_read(child, [{"op": "remove", "path": pointer} for pointer in pointers])

    async def _patch_as_read(self, child: Object, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        version = {"op": "replace", "path": "/metadata/resourceVersion", "value": meta(child)["resourceVersion"]}
        query = {"fieldManager": MANAGED_BY}
        return await self.request("PATCH", _path_of(child), query=query, body=[*steps, version], content=_STEPS)

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """A child, or None. kind: as `key_of` names it."""
        try:
            return await self.request("GET", _child_path(kind, namespace, name))
        except GoneError:
            return None

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Deletes exactly this object. An object that is gone, or was created again, is left alone."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self.request("DELETE", _child_path(kind, namespace, name), body=body)
        except (GoneError, ConflictError):
            return

    async def annotate(self, namespace: str, pod: str, annotations: Mapping[str, str]) -> None:
        """Sets annotations of a pod. The pod may be gone by now."""
        body = {"metadata": {"annotations": dict(annotations)}}
        try:
            await self.request("PATCH", resource_path("v1", "pods", namespace, pod), body=body, content=_MERGE)
        except GoneError:
            return

    async def write_status(self, thing: Object, plural: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the status of a pool or gateway. Raises ConflictError if the object changed since it was read."""
        known = {name: meta(thing)[name] for name in ("name", "namespace", "uid", "resourceVersion")}
        body = {"apiVersion": thing["apiVersion"], "kind": thing["kind"], "metadata": known, "status": dict(status)}
        path = resource_path(str(thing["apiVersion"]), plural, str(known["namespace"]), str(known["name"])) + "/status"
        query = {"fieldManager": MANAGED_BY, "force": "true"}
        return await self.request("PATCH", path, query=query, body=body, content=_APPLY)

    async def list_pages(
        self, api_version: str, plural: str, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> AsyncIterator[list[Object]]:
        """All objects of a kind, page by page, because all at once may exceed the memory.

        No page where the cluster does not know the kind. selector: of labels. fields: of fields.
        """
        try:
            async for text in self._pages(api_version, plural, namespace, selector, _JSON, fields):
                page = _parsed(text)
                kind = str(page.get("kind", "")).removesuffix("List")
                yield [{"apiVersion": api_version, "kind": kind, **one} for one in page.get("items") or ()]
        except GoneError:
            return

    async def list_versions(self, api_version: str, plural: str, namespace: str | None, selector: str) -> list[Object]:
        """Namespace, name and resourceVersion of all objects of a kind, each in its metadata.

        The rest is not parsed: most of it is `managedFields`. Raises GoneError where the cluster does not know the
        kind.
        """
        found: list[Object] = []
        async for text in self._pages(api_version, plural, namespace, selector, _METADATA):
            found += [{"metadata": msgspec.to_builtins(one.metadata)} for one in _listed(text).items or ()]
        return found

    async def _pages(
        self, api_version: str, plural: str, namespace: str | None, selector: str, accept: str, fields: str = ""
    ) -> AsyncIterator[bytes]:
        path = resource_path(api_version, plural, namespace)
        selectors = {"labelSelector": selector, "fieldSelector": fields}
        query = {"limit": str(_PAGE), **{name: value for name, value in selectors.items() if value}}
        while True:
            text = await self._answer("GET", path, query=query, accept=accept)
            yield text
            next_page = _head(text).metadata.next_page
            if not next_page:
                return
            query["continue"] = next_page

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = _JSON,
    ) -> dict[str, Any]:
        """Sends one request. Raises one of `errors`."""
        return _parsed(await self._answer(method, path, query=query, body=body, content=content))

    async def _answer(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = _JSON,
        accept: str = _JSON,
    ) -> bytes:
        url = f"{self._client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "Content-Type": content, "User-Agent": "plumage-operator"}
        try:
            async with self._slots:
                await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
                async with asyncio.timeout(TIMEOUT):
                    status, text, after = await self._send(method, url, headers, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnavailableError(f"{method} {path}: {type(error).__name__}: {error}") from error
        if status < 300:
            return text
        raise _error(method, path, status, read_refusal(text), after)

    async def _send(
        self, method: str, url: str, headers: dict[str, str], body: object
    ) -> tuple[int, bytes, float | None]:
        response = await self._client.call_api(
            method, url, headers, body, _request_timeout=aiohttp.ClientTimeout(TIMEOUT)
        )
        text = await response.read()
        after = str(response.getheader("Retry-After", ""))
        return int(response.status), text, float(after) if after.isdigit() else None


def resource_path(api_version: str, plural: str, namespace: str | None, name: str | None = None) -> str:
    """The path of an object, or of all objects of its kind; without a namespace, in the whole cluster."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    where = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{where}/{plural}" + (f"/{quote(name)}" if name else "")


def _path_of(child: Object) -> str:
    kind, name = key_of(child)
    return _child_path(kind, str(meta(child)["namespace"]), name)


def _child_path(kind: str, namespace: str, name: str) -> str:
    return resource_path(*KINDS[kind], namespace, name)


class _Metadata(msgspec.Struct):
    namespace: str = ""
    name: str = ""
    resourceVersion: str = ""  # noqa: N815 - the name in JSON


class _Item(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Listed(msgspec.Struct):
    items: list[_Item] | None = None  # null for an empty list


class _ListMetadata(msgspec.Struct):
    next_page: str = msgspec.field(default="", name="continue")


class _Head(msgspec.Struct):
    """The part of a list that says where its next page starts."""

    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)


_decode = msgspec.json.Decoder().decode

_listed = msgspec.json.Decoder(_Listed).decode

_head = msgspec.json.Decoder(_Head).decode


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        content = _decode(text) if text else {}
    except msgspec.DecodeError:
        content = {}
    return content if isinstance(content, dict) else {}


def _error(method: str, path: str, status: int, refusal: StatusObject, after: float | None) -> ApiError:
    text, reason = refusal
    message = f"{method} {path}: {status} {reason}: {text}"
    if status == 500 and text.startswith(_SCHEMA_MISMATCH):  # every retry would get the same answer
        return RefusedError(text, status, reason)
    if status in (401, 408, 410, 429) or status >= 500:  # 410: a list took too long, and its next page expired
        return UnavailableError(message, status, reason, after)
    if status == 409:
        return ConflictError(message, status, reason)
    if status == 404:
        return GoneError(message, status, reason)
    return RefusedError(text or message, status, reason)
