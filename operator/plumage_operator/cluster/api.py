"""The API server, as far as the operator needs it: a few verbs on plain objects.

Every call has a timeout. What comes back says by its type whether to ask again: see `errors`. The client is
`kubernetes.aio`'s, by its one generic call: its models would parse each answer twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from plumage.cluster import MANAGED_BY
from plumage_operator.children import KINDS
from plumage_operator.errors import ApiError, ConflictError, GoneError, RefusedError, UnavailableError
from plumage_operator.observed import Object, meta

__all__ = ["Api", "path_of"]

TIMEOUT: Final = 20.0  # seconds for one answer
_AT_ONCE: Final = 16  # requests in flight: the API server's own fairness does the rest
_PAGE: Final = 500
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Api:
    """configuration: of `credentials`. Use it as an async context manager, in one event loop."""

    def __init__(self, configuration: Any) -> None:
        self._client: Any = ApiClient(configuration)  # untyped upstream
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def apply(self, child: Object) -> dict[str, Any]:
        """Server-side apply, forced: the fields that we write are ours, whoever wrote them before."""
        path = _child_path(str(child["kind"]), str(meta(child)["namespace"]), str(meta(child)["name"]))
        query = {"fieldManager": MANAGED_BY, "force": "true"}
        return await self.request("PATCH", path, query=query, body=child, content=_APPLY)

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """A child, or None."""
        try:
            return await self.request("GET", _child_path(kind, namespace, name))
        except GoneError:
            return None

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Remove exactly this object; one that is gone, or was made anew, is left."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self.request("DELETE", _child_path(kind, namespace, name), body=body)
        except (GoneError, ConflictError):
            return

    async def annotate(self, namespace: str, pod: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod that may be gone by now."""
        body = {"metadata": {"annotations": dict(annotations)}}
        try:
            await self.request("PATCH", path_of("v1", "pods", namespace, pod), body=body, content=_MERGE)
        except GoneError:
            return

    async def write_status(self, thing: Object, plural: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the status of a pool or gateway. ConflictError where it changed since it was read."""
        known = {name: meta(thing)[name] for name in ("name", "namespace", "uid", "resourceVersion")}
        body = {"apiVersion": thing["apiVersion"], "kind": thing["kind"], "metadata": known, "status": dict(status)}
        path = path_of(str(thing["apiVersion"]), plural, str(known["namespace"]), str(known["name"])) + "/status"
        query = {"fieldManager": MANAGED_BY, "force": "true"}
        return await self.request("PATCH", path, query=query, body=body, content=_APPLY)

    async def every(self, api_version: str, plural: str, namespace: str | None, selector: str) -> list[Object]:
        """All objects of a kind, page by page; none where the cluster does not know the kind."""
        found: list[Object] = []
        query = {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            try:
                page = await self.request("GET", path_of(api_version, plural, namespace), query=query)
            except GoneError:
                return found
            kind = str(page.get("kind", "")).removesuffix("List")
            found += [{"apiVersion": api_version, "kind": kind, **one} for one in page.get("items") or ()]
            going_on = (page.get("metadata") or {}).get("continue")
            if not going_on:
                return found
            query["continue"] = str(going_on)

    async def versions(self, api_version: str, plural: str, namespace: str | None, selector: str) -> list[Object]:
        """Metadata of all objects of a kind."""
        query = {"labelSelector": selector} if selector else {}
        found = await self.request("GET", path_of(api_version, plural, namespace), query=query, accept=_METADATA)
        return list(found.get("items") or ())

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        """One request; one of `errors` where it is not done."""
        url = f"{self._client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "Content-Type": content, "User-Agent": "plumage-operator"}
        try:
            async with self._slots:
                await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
                async with asyncio.timeout(TIMEOUT):
                    answer = await self._send(method, url, headers, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnavailableError(f"{method} {path}: {type(error).__name__}: {error}") from error
        status, told, after = answer
        if status < 300:
            return told
        raise _error(method, path, status, told, after)

    async def _send(
        self, method: str, url: str, headers: dict[str, str], body: object
    ) -> tuple[int, dict[str, Any], float | None]:
        response = await self._client.call_api(
            method, url, headers, body, _request_timeout=aiohttp.ClientTimeout(TIMEOUT)
        )
        text = await response.read()
        after = str(response.getheader("Retry-After", ""))
        return int(response.status), _parsed(text), float(after) if after.isdigit() else None


def path_of(api_version: str, plural: str, namespace: str | None, name: str | None = None) -> str:
    """The path of an object, or of all of its kind; of the whole cluster without a namespace."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    where = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{where}/{plural}" + (f"/{quote(name)}" if name else "")


def _child_path(kind: str, namespace: str, name: str) -> str:
    return path_of(*KINDS[kind], namespace, name)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        told = json.loads(text) if text else {}
    except ValueError:
        told = {"message": text[:200].decode(errors="replace")}
    return told if isinstance(told, dict) else {}


def _error(method: str, path: str, status: int, told: Mapping[str, Any], after: float | None) -> ApiError:
    reason, said = str(told.get("reason", "")), str(told.get("message", ""))
    message = f"{method} {path}: {status} {reason}: {said}"
    if status in (408, 429, 401) or status >= 500:
        return UnavailableError(message, status, reason, after)
    if status == 409:
        return ConflictError(message, status, reason)
    if status == 404:
        return GoneError(message, status, reason)
    return RefusedError(said or message, status, reason)
