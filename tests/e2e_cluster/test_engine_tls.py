"""A pool whose engines get TLS, then client certificates, then a renewal, and then plain HTTP again, under load."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.certificates import Authority
from support.kube_access import Access, until
from support.kube_install import Pool, apply_pool, remove_pool
from support.kube_load import Load

NAMESPACE = "tls"
NAME = "chat-engine.tls.svc"
LOAD = {
    "model": "tiny", "key": "", "workers": 4, "pace_s": 0.5, "groups": 4, "prefix_words": 40, "answer_tokens": 8,
}  # fmt: skip
# The certificate that an engine shows, and the answer of its health check without a certificate of its own.
LOOK = """
import http.client, json, ssl, sys
address, context = sys.argv[1], ssl._create_unverified_context()
shown = ssl.get_server_certificate((address, 8000)) if sys.argv[2] == "look" else ""
try:
    connection = http.client.HTTPSConnection(address, 8000, timeout=10, context=context)
    connection.request("GET", "/health")
    said = str(connection.getresponse().status)
except OSError as error:
    said = type(error).__name__
print(json.dumps([shown, said]))
"""


def manifest(tls: dict[str, str] | None) -> str:
    engine = {"runtime": "Simulator", **({} if tls is None else {"tls": tls})}
    model = {"uri": "builtin://tiny-chat", "name": "tiny"}
    spec = {"model": model, "engine": engine, "replicas": 1, "router": {"replicas": 1}}
    api = "inference.plumage.dev/v1alpha1"
    return json.dumps({"apiVersion": api, "kind": "InferencePool", "metadata": {"name": "chat"}, "spec": spec})


class Secrets:
    """The Secrets of both sides, as cert-manager writes them."""

    def __init__(self, access: Access, folder: Path) -> None:
        self._access = access
        self._folder = folder
        self._authority = Authority.create("plumage-e2e")
        self._authority.write(folder, "ca")

    def write(self, name: str, host: str) -> str:
        """Makes or renews one. Returns its certificate."""
        self._authority.issue(self._folder, name, name, [host])
        files = {"tls.crt": f"{name}.crt", "tls.key": f"{name}.key", "ca.crt": "ca.crt"}
        data = {entry: (self._folder / file).read_text() for entry, file in files.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "stringData": data}
        self._access.kubectl(
            "-n",
            NAMESPACE,
            "apply",
            "--server-side",
            "-f",
            "-",
            stdin=json.dumps({**secret, "metadata": {"name": name}}),
        )
        return data["tls.crt"]


@pytest.fixture
def pool(access: Access, installed: None) -> Iterator[Pool]:
    made = apply_pool(access, NAMESPACE, "chat", manifest(None))
    yield made
    remove_pool(access, made)
    access.kubectl("-n", NAMESPACE, "delete", "secret", "engine-tls", "client-tls", "--ignore-not-found")


def engines(access: Access) -> list[dict[str, Any]]:
    return [
        pod
        for pod in access.api.listed("pods", NAMESPACE)
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "engine"
    ]


def roll(access: Access, tls: dict[str, str] | None) -> list[dict[str, Any]]:
    """Applies the field, and waits until all pods have it. Returns the engines."""
    access.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=manifest(tls))

    def done() -> bool:
        pods = engines(access)
        ports = {port["name"] for pod in pods for port in pod["spec"]["containers"][0]["ports"]}
        probes = {"exec" in pod["spec"]["containers"][0]["livenessProbe"] for pod in pods}
        wanted = ({"https" if tls else "http"}, {bool(tls and "clientSecretName" in tls)})
        return len(pods) == 1 and (ports, probes) == wanted and all(map(_is_ready, pods))

    until(done, f"all engines have {tls}")
    for part in ("engine", "router"):
        access.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/chat-{part}", "--timeout=180s")
    return engines(access)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


def look(access: Access, pod: dict[str, Any], how: str = "look") -> tuple[str, str]:
    shown, said = json.loads(access.inside(NAMESPACE, LOOK, pod["status"]["podIP"], how))
    return shown, said


def test_tls_comes_and_goes_and_no_request_is_lost(access: Access, pool: Pool, tmp_path: Path) -> None:
    secrets = Secrets(access, tmp_path)
    first = secrets.write("engine-tls", NAME)
    secrets.write("client-tls", "routers")
    one, both = {"secretName": "engine-tls"}, {"secretName": "engine-tls", "clientSecretName": "client-tls"}
    load = Load.start(access, pool, port=8000, **LOAD)
    try:
        for pod in roll(access, one):
            assert look(access, pod) == (first, "200")
        found = roll(access, both)
        for pod in found:
            assert look(access, pod, "ask")[1] != "200", "it asks for a certificate"
        renewed = secrets.write("engine-tls", NAME)
        secrets.write("client-tls", "routers")
        shown = {pod["metadata"]["name"]: "" for pod in found}

        def all_renewed() -> bool:
            shown.update({pod["metadata"]["name"]: _shown(access, pod) for pod in found})
            return set(shown.values()) == {renewed}

        until(all_renewed, "engines show the renewed certificate")
        after = {pod["metadata"]["name"]: pod for pod in engines(access)}
        assert set(after) == set(shown), "no pod was replaced"
        restarts = [
            status["restartCount"]
            for pod in after.values()
            for status in (*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"])
        ]
        assert set(restarts) == {0}
        roll(access, one)
        roll(access, None)
        run = load.settled(time.time())
    finally:
        load.stop()
    assert [row for row in run.rows if row.outcome != "ended"] == []
    assert len(run.rows) > 100


def _shown(access: Access, pod: dict[str, Any]) -> str:
    """In TLS 1.3 a client sees it before the engine looks at the client's."""
    return look(access, pod)[0]
