"""A real API server with Plumage's kinds, and a namespace of the test module's own."""

from __future__ import annotations

import json
import secrets
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from cluster.api_only import ApiServer

__all__ = ["CRDS", "Kinds", "Verdict", "kinds"]

CRDS = Path(__file__).parents[2] / "crds"
_EXPLAINED_TRIES = 120
_PLURALS = {"InferencePool": "inferencepools", "InferenceGateway": "inferencegateways"}


@dataclass(frozen=True)
class Verdict:
    """The server's response to an object: its status, and the object as it would be stored or the refusal."""

    code: int
    body: dict[str, Any]

    @property
    def accepted(self) -> bool:
        return self.code in (200, 201)

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Each refusal: the field, as the server writes it, and the message."""
        causes = self.body.get("details", {}).get("causes", [])
        return [(cause.get("field", ""), cause["message"]) for cause in causes]


class Kinds:
    """An administrator's plain HTTP client for one namespace of a server that has the definitions."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        trusted = ssl.create_default_context(cafile=str(server.ca_file))
        headers = {"Authorization": f"Bearer {server.token}"}
        self._client = httpx.Client(base_url=server.url, headers=headers, verify=trusted, timeout=30.0)

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> Any:
        return self.server.kubectl("-n", self.namespace, *args, stdin=stdin, check=check)

    def create(self, document: dict[str, Any], *, dry_run: bool = False) -> Verdict:
        """Creates as kubectl does: an unknown field is refused."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self._say("POST", self._path(document["kind"]), document, "application/json", query)

    def create_yaml(self, text: str, *, dry_run: bool = False) -> Verdict:
        """Sends a pool's YAML unchanged. The server parses it; no client turns it into JSON first."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        answer = self._client.post(
            self._path("InferencePool"), content=text, headers={"Content-Type": "application/yaml"}, params=query
        )
        return Verdict(answer.status_code, answer.json())

    def judge(self, document: dict[str, Any]) -> Verdict:
        """The response to a create that is a dry run."""
        return self.create(document, dry_run=True)

    def patch(self, kind: str, name: str, change: dict[str, Any], *, part: str = "") -> Verdict:
        """A merge patch of the object, or of its subresource `part`."""
        return self._say("PATCH", self._path(kind, name, part), change, "application/merge-patch+json", {})

    def get(self, kind: str, name: str, part: str = "") -> Verdict:
        answer = self._client.get(self._path(kind, name, part))
        return Verdict(answer.status_code, answer.json())

    def _path(self, kind: str, name: str = "", part: str = "") -> str:
        whole = f"/apis/inference.plumage.dev/v1alpha1/namespaces/{self.namespace}/{_PLURALS[kind]}/{name}/{part}"
        return whole.rstrip("/")

    def _say(self, method: str, path: str, body: Any, form: str, query: dict[str, str]) -> Verdict:
        answer = self._client.request(
            method, path, content=json.dumps(body), headers={"Content-Type": form}, params=query
        )
        return Verdict(answer.status_code, answer.json())

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def kinds(api_server: ApiServer) -> Iterator[Kinds]:
    """A client with a namespace that is removed afterwards. The definitions stay, since other modules use them."""
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    api_server.established()
    for _ in range(_EXPLAINED_TRIES):  # the OpenAPI schema that kubectl reads is published a little later
        if api_server.kubectl("explain", "ppool", check=False).returncode == 0:
            break
        time.sleep(0.5)
    namespace = f"crds-{secrets.token_hex(4)}"
    api_server.kubectl("create", "namespace", namespace)
    kinds = Kinds(api_server, namespace)
    yield kinds
    kinds.close()
    api_server.kubectl("delete", "namespace", namespace, "--wait=false")
