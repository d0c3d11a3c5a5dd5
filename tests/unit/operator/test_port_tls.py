"""`router.tls` of a pool and `tls` of a gateway: what their children and their status say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.gateway_world import ROUTER, Gateway, attached
from support.operator_world import CONFIG, World, pool_object
from support.port_certificates import PortCertificate

from plumage.errors import ManifestError
from plumage_operator.autoscaling.pods import pods_of_pool
from plumage_operator.autoscaling.report_client import FleetClient, PodBackoff
from plumage_operator.observed import key_of
from plumage_operator.resources import PoolContext, build_children
from plumage_operator.resources.context import SERVES_TLS, read_pool
from plumage_router.config import load_config

BASE: dict[str, Any] = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}}
TLS: dict[str, Any] = {"tls": {"secretName": "chat-tls"}}


def children(**router: Any) -> dict[tuple[str, str], Any]:
    spec = {**BASE, "router": router, "monitoring": {"enabled": True}}
    built = build_children(PoolContext(read_pool(pool_object(spec)), CONFIG, 1))
    return {key_of(child): child for child in built}


def template(made: dict[tuple[str, str], Any]) -> Any:
    return made["Deployment", "chat-router"]["spec"]["template"]


def port_facts(container: Any) -> set[str]:
    """The clients' port of a router's container, and the scheme of its probes."""
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    return {container["ports"][0]["name"], *(probe.get("scheme", "HTTP") for probe in probes)}


def test_secret_is_mounted_as_a_folder() -> None:
    """The kubelet does not update a file that is mounted by `subPath`."""
    [container] = template(children(**TLS))["spec"]["containers"]
    [volume] = [one for one in template(children(**TLS))["spec"]["volumes"] if one["name"] == "tls"]
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "tls"]
    assert mount == {"name": "tls", "mountPath": "/etc/plumage-tls", "readOnly": True}
    assert volume["secret"]["secretName"] == "chat-tls"
    assert [item["path"] for item in volume["secret"]["items"]] == ["tls.crt", "tls.key"]


def test_router_reads_the_mounted_pair(tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    file.write_text(children(**TLS)["ConfigMap", "chat-router"]["data"]["router.json"])
    tls = load_config(file).listen.tls
    assert tls is not None
    assert (str(tls.certificate_file), str(tls.key_file)) == ("/etc/plumage-tls/tls.crt", "/etc/plumage-tls/tls.key")


def test_port_and_probes_change_their_scheme() -> None:
    plain, secure = children(), children(**TLS)
    assert port_facts(template(plain)["spec"]["containers"][0]) == {"http", "HTTP"}
    assert port_facts(template(secure)["spec"]["containers"][0]) == {"https", "HTTPS"}
    [service] = secure["Service", "chat-router"]["spec"]["ports"]
    assert (service["name"], service["targetPort"], service["appProtocol"]) == ("https", "https", "https")
    assert "appProtocol" not in plain["Service", "chat-router"]["spec"]["ports"][0]
    for kind in ("PodMonitor", "NetworkPolicy"):
        assert plain[kind, "chat-router"]["spec"] == secure[kind, "chat-router"]["spec"]


def test_ingress_names_the_port_of_the_service() -> None:
    made = children(ingress={"host": "chat.example"}, **TLS)
    [rule] = made["Ingress", "chat-router"]["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["port"] == {"name": "https"}


def test_status_has_the_scheme() -> None:
    world = World(pool_object({**BASE, "router": TLS}))
    world.converge()
    assert world.pool["status"]["address"] == "https://chat-router.default.svc:8000"


def test_gateway_has_tls_on_all_listeners() -> None:
    listeners = [{"name": "one", "port": 80}, {"name": "two", "port": 8080}]
    world = Gateway(attached("chat"), listeners=listeners, tls={"secretName": "front-tls"})
    world.converge()
    ports = world.objects["Service", "front-gateway"]["spec"]["ports"]
    assert [(port["name"], port["targetPort"], port["appProtocol"]) for port in ports] == [
        ("one", "https", "https"), ("two", "https", "https"),
    ]  # fmt: skip
    pod = world.objects[ROUTER]["spec"]["template"]["spec"]
    assert "front-tls" in [volume.get("secret", {}).get("secretName") for volume in pod["volumes"]]
    assert port_facts(pod["containers"][0]) == {"https", "HTTPS"}
    assert world.config["listen"]["tls"]["keyFile"] == "/etc/plumage-tls/tls.key"
    assert world.pool["status"]["addresses"] == [f"https://front-gateway.default.svc:{port}" for port in (80, 8080)]


def test_routers_are_polled_as_their_pods_say() -> None:
    """While a rollout adds TLS, the pool has pods with and without it."""
    secure, plain = (router_pod(name, template(children(**router))) for name, router in (("a", TLS), ("b", {})))
    urls = [pod.url for pod in pods_of_pool("chat", [secure, plain]).routers]
    assert [url.partition(":")[0] for url in urls if url is not None] == ["https", "http"]


def router_pod(name: str, made: Any) -> dict[str, Any]:
    annotations = made["metadata"]["annotations"]
    owners = [{"kind": "ReplicaSet", "name": "chat-router-5d4f8", "controller": True}]
    metadata = {"name": name, "labels": made["metadata"]["labels"], "annotations": annotations}
    return {"metadata": {**metadata, "ownerReferences": owners}, "status": {"podIP": "10.0.0.1"}}


def test_pool_behind_a_gateway_has_no_port_of_its_own() -> None:
    with pytest.raises(ManifestError, match=r"spec\.router\.gatewayRef: may not be set together with other fields"):
        read_pool(pool_object({**BASE, "router": {"gatewayRef": {"name": "front"}, **TLS}}))


def test_plain_pods_have_no_mark() -> None:
    assert SERVES_TLS not in template(children())["metadata"]["annotations"]


async def test_operator_reads_reports_over_tls(tmp_path: Path) -> None:
    """The certificate names the Service, and the operator asks a pod by its address."""
    certificate = PortCertificate(tmp_path / "tls")
    context = certificate.server()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"pool": "chat"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    client, got = FleetClient(tmp_path / "no-token"), []
    try:
        port = server.sockets[0].getsockname()[1]
        assert await client.fetch(f"https://127.0.0.1:{port}/v1/plumage/fleet", got.append, PodBackoff())
    finally:
        await client.close()
        server.close()
    assert json.loads(got[0]) == {"pool": "chat"}
