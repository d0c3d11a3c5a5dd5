"""A client of the API server in this process. A kubectl takes up to a tenth of a second of CPU time, and waits ask
often.

Tests use kubectl where its command is what they test, and for what is not one request: apply, wait, drain, rollout.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from kubernetes.client.configuration import Configuration
from kubernetes.config.kube_config import load_kube_config

__all__ = ["KubeApi"]

_CORE = "api/v1"
_GROUPS = {
    "deployments": "apis/apps/v1",
    "endpointslices": "apis/discovery.k8s.io/v1",
    "inferencegateways": "apis/inference.plumage.dev/v1alpha1",
    "inferencepools": "apis/inference.plumage.dev/v1alpha1",
    "leases": "apis/coordination.k8s.io/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "rolebindings": "apis/rbac.authorization.k8s.io/v1",
}
_LIMIT_S = 60.0
_HEADS = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_STRICT = {"fieldValidation": "Strict"}
_ALL_KINDS = "application/json;as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=v2"


class KubeApi:
    """The requests of any kubeconfig's user. Kinds are named as in the API's paths: `pods`, `deployments`. A refused
    request fails the test, with the server's words."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._client = _connected(kubeconfig)

    def close(self) -> None:
        self._client.close()

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """An object, or an empty one if it does not exist."""
        answer = self._answer("GET", _path(kind, namespace, name), also=(404,))
        return {} if answer.status_code == 404 else dict(answer.json())

    def listed(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects of a kind with these labels, oldest first."""
        items = self._answer("GET", _path(kind, namespace), query={"labelSelector": selector}).json()["items"] or ()
        return sorted(items, key=lambda one: str(one["metadata"]["creationTimestamp"]))

    def names(self, kind: str, namespace: str, selector: str = "") -> list[str]:
        """The names of the objects of a kind with these labels."""
        return [str(one["name"]) for one in self.heads(kind, namespace, selector)]

    def heads(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """The metadata of the objects of a kind with these labels. The server sends nothing else of them."""
        answer = self._answer("GET", _path(kind, namespace), accept=_HEADS, query={"labelSelector": selector})
        return [one["metadata"] for one in answer.json()["items"] or ()]

    def everything(self) -> Iterator[tuple[str, str, str, str]]:
        """Kind, group with version, namespace and name of every object that can be listed. The namespace is empty for
        what is in none."""
        for group, kind, plural in self._kinds():
            answer = self._answer("GET", f"/{_base(group)}/{plural}", accept=_HEADS, also=(404, 405))
            for one in answer.json().get("items") or ():
                yield kind, group, one["metadata"].get("namespace", ""), one["metadata"]["name"]

    def _kinds(self) -> Iterator[tuple[str, str, str]]:
        """Group with version, kind and plural of all kinds that can be listed, in the version that a group prefers."""
        for root in ("/api", "/apis"):
            for group in self._answer("GET", root, accept=_ALL_KINDS).json()["items"]:
                name, versions = group["metadata"].get("name", ""), group["versions"]
                for resource in versions[0].get("resources", ()):
                    version = versions[0]["version"]
                    if "list" in resource["verbs"]:
                        kind = resource["responseKind"]["kind"]
                        yield (f"{name}/{version}" if name else version), kind, resource["resource"]

    def log(self, pod: str, namespace: str, since_s: float | None = None) -> str:
        """The log of a pod's only container. It is empty if the pod does not exist or has not started."""
        query = {} if since_s is None else {"sinceSeconds": str(max(1, round(since_s)))}
        answer = self._answer("GET", f"{_path('pods', namespace, pod)}/log", also=(400, 404, 500), query=query)
        return answer.text if answer.status_code == 200 else ""

    def create(self, kind: str, namespace: str, document: Mapping[str, Any]) -> bool:
        """Whether the object is new: it is left as it is if one of its name exists."""
        answer = self._answer("POST", _path(kind, namespace), document, also=(409,), query=_STRICT)
        return answer.status_code != 409

    def patch(self, kind: str, name: str, namespace: str, change: Mapping[str, Any]) -> None:
        """A merge patch."""
        form = "application/merge-patch+json"
        self._answer("PATCH", _path(kind, namespace, name), change, form, query=_STRICT)

    def delete(self, kind: str, name: str, namespace: str) -> None:
        """Does not wait for the end. An object that does not exist is no error."""
        self._answer("DELETE", _path(kind, namespace, name), also=(404,))

    def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        form: str = "application/json",
        *,
        accept: str = "*/*",
        also: tuple[int, ...] = (),
        query: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        content = None if body is None else json.dumps(body)
        headers = {"Accept": accept, **({} if body is None else {"Content-Type": form})}

        def ask() -> httpx.Response:
            return self._client.request(method, path, content=content, headers=headers, params=query)

        answer = ask()
        if answer.status_code == 401:  # the user's token has expired
            self._client.close()
            self._client = _connected(self._kubeconfig)
            answer = ask()
        assert answer.is_success or answer.status_code in also, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer


def _connected(kubeconfig: Path) -> httpx.Client:
    configuration = Configuration()
    load_kube_config(  # type: ignore[no-untyped-call]
        str(kubeconfig), client_configuration=configuration, persist_config=False
    )
    trusted: ssl.SSLContext | bool = False
    if configuration.verify_ssl:
        trusted = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            trusted.load_cert_chain(configuration.cert_file, configuration.key_file)
    token = configuration.auth_settings().get("BearerToken", {}).get("value")
    headers = {"Authorization": token} if token else {}
    return httpx.Client(base_url=configuration.host, headers=headers, verify=trusted, timeout=_LIMIT_S, trust_env=False)


def _base(group: str) -> str:
    return f"apis/{group}" if "/" in group else f"api/{group}"


def _path(kind: str, namespace: str, name: str = "") -> str:
    """The path of an object or a list. Namespaces themselves are in none: ``."""
    within = f"namespaces/{namespace}/" if namespace else ""
    return f"/{_GROUPS.get(kind, _CORE)}/{within}{kind}/{name}".rstrip("/")
