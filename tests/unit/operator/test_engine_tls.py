"""`engine.tls` of a pool: what its engines' pods, its routers and Prometheus get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateway_world import ROUTER, Gateway, attached
from support.operator_world import CONFIG, World, pool_object

from plumage_operator.observed import key_of
from plumage_operator.resources import PoolContext, build_children
from plumage_operator.resources.context import read_pool
from plumage_router.config import load_config

ONE_SIDE: dict[str, Any] = {"secretName": "chat-engine-tls"}
BOTH: dict[str, Any] = {**ONE_SIDE, "clientSecretName": "chat-client-tls"}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def children(tls: dict[str, Any] | None, runtime: str = "Simulator") -> dict[tuple[str, str], Any]:
    engine = {"runtime": runtime, **({} if tls is None else {"tls": tls})}
    uri = "builtin://tiny-chat" if runtime == "Simulator" else "hf://org/model"
    spec = {"model": {"uri": uri}, "engine": engine, "monitoring": {"enabled": True}}
    built = build_children(PoolContext(read_pool(pool_object(spec)), CONFIG, 1))
    return {key_of(child): child for child in built}


def pod(made: dict[tuple[str, str], Any], name: str) -> Any:
    return made["Deployment", name]["spec"]["template"]["spec"]


def engine(made: dict[tuple[str, str], Any]) -> Any:
    return pod(made, "chat-engine")["containers"][0]


def secrets(made: dict[tuple[str, str], Any], name: str) -> dict[str, tuple[str, list[str]]]:
    """Of certificates in a pod: the Secret and its entries, by the folder."""
    volumes = {
        volume["name"]: volume["secret"] for volume in pod(made, name)["volumes"] if "tls" in str(volume.get("secret"))
    }
    mounts = [mount for one in containers(made, name) for mount in one["volumeMounts"] if mount["name"] in volumes]
    assert all(mount["readOnly"] and "subPath" not in mount for mount in mounts), "the kubelet updates whole folders"
    return {
        mount["mountPath"]: (
            volumes[mount["name"]]["secretName"],
            [item["path"] for item in volumes[mount["name"]]["items"]],
        )
        for mount in mounts
    }


def containers(made: dict[tuple[str, str], Any], name: str) -> list[Any]:
    found = pod(made, name)
    return [*found.get("initContainers", ()), *found["containers"]]


def settings(made: dict[tuple[str, str], Any], config: str, file: str) -> Any:
    return json.loads(made["ConfigMap", config]["data"][file])


def test_without_the_field_engines_serve_plain_http() -> None:
    made = children(None)
    assert secrets(made, "chat-engine") == secrets(made, "chat-router") == {}
    assert engine(made)["ports"] == [{"name": "http", "containerPort": 8000, "protocol": "TCP"}]
    assert {engine(made)[probe]["httpGet"].get("scheme", "HTTP") for probe in PROBES} == {"HTTP"}
    assert settings(made, "chat-engine", "engine.json").get("tls") is None
    assert settings(made, "chat-engine", "agent.json")["engineUrl"] == "http://127.0.0.1:8000"
    assert settings(made, "chat-router", "router.json").get("engineTls") is None


def test_engine_has_its_pair_and_the_router_the_authority_only() -> None:
    made = children(ONE_SIDE)
    assert secrets(made, "chat-engine") == {"/etc/plumage-tls": ("chat-engine-tls", ["tls.crt", "tls.key"])}
    assert secrets(made, "chat-router") == {"/etc/plumage-engine-ca": ("chat-engine-tls", ["ca.crt"])}
    [agent] = [one for one in containers(made, "chat-engine") if one["name"] == "agent"]
    assert "tls" not in [mount["name"] for mount in agent["volumeMounts"]], "the engine's key is the engine's only"


def test_certificate_of_routers_is_mounted_where_it_is_shown() -> None:
    made = children(BOTH)
    assert secrets(made, "chat-engine") == {
        "/etc/plumage-tls": ("chat-engine-tls", ["tls.crt", "tls.key"]),
        "/etc/plumage-client-tls": ("chat-client-tls", ["tls.crt", "tls.key", "ca.crt"]),
    }
    assert secrets(made, "chat-router") == {
        "/etc/plumage-engine-ca": ("chat-engine-tls", ["ca.crt"]),
        "/etc/plumage-client-tls": ("chat-client-tls", ["tls.crt", "tls.key"]),
    }


def test_router_asks_for_the_name_of_the_service(tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    file.write_text(children(BOTH)["ConfigMap", "chat-router"]["data"]["router.json"])
    tls = load_config(file).engine_tls
    assert tls is not None
    assert tls.server_name == "chat-engine.default.svc"
    assert str(tls.ca_file) == "/etc/plumage-engine-ca/ca.crt"
    assert str(tls.certificate_file) == "/etc/plumage-client-tls/tls.crt"
    assert str(tls.key_file) == "/etc/plumage-client-tls/tls.key"


def test_ports_say_what_a_pod_serves() -> None:
    """Both are ports of the Service, so that a pod of either kind has a slice with its own."""
    plain, secure = children(None), children(ONE_SIDE)
    for made in (plain, secure):
        ports = made["Service", "chat-engine"]["spec"]["ports"]
        assert [(port["name"], port["targetPort"]) for port in ports] == [
            ("http", "http"), ("https", "https"), ("agent", "agent"),
        ]  # fmt: skip
        assert len({port["port"] for port in ports}) == 3, "Kubernetes refuses a number twice"
    assert engine(secure)["ports"] == [{"name": "https", "containerPort": 8000, "protocol": "TCP"}]
    assert plain["NetworkPolicy", "chat-engine"]["spec"] == secure["NetworkPolicy", "chat-engine"]["spec"]


def test_probes_have_tls_and_a_certificate_where_the_engine_asks_for_one() -> None:
    one, both = engine(children(ONE_SIDE)), engine(children(BOTH))
    assert {(one[probe]["httpGet"]["scheme"], one[probe]["httpGet"]["port"]) for probe in PROBES} == {("HTTPS", 8000)}
    for probe in PROBES:
        command = both[probe]["exec"]["command"]
        assert command[:3] == ["python3", "-m", "plumage_engine.agent.probe"]
        assert command[-4:] == [
            "--certificate", "/etc/plumage-client-tls/tls.crt", "--key", "/etc/plumage-client-tls/tls.key",
        ]  # fmt: skip
        assert command[4] == str(both[probe]["timeoutSeconds"])
        assert both[probe]["periodSeconds"] == one[probe]["periodSeconds"]


def test_simulator_and_agent_get_the_files() -> None:
    made = children(BOTH)
    assert settings(made, "chat-engine", "engine.json")["tls"] == {
        "certificateFile": "/etc/plumage-tls/tls.crt",
        "keyFile": "/etc/plumage-tls/tls.key",
        "clientCaFile": "/etc/plumage-client-tls/ca.crt",
    }
    agent = settings(made, "chat-engine", "agent.json")
    assert agent["engineUrl"] == "https://127.0.0.1:8000"
    assert agent["engineCertificateFile"] == "/etc/plumage-client-tls/tls.crt"
    assert agent["engineCertificateKeyFile"] == "/etc/plumage-client-tls/tls.key"


def test_vllm_gets_flags_and_follows_the_kubelets_links() -> None:
    one, both = engine(children(ONE_SIDE, "VLLM")), engine(children(BOTH, "VLLM"))
    pair = {
        "--ssl-certfile=/etc/plumage-tls/tls.crt", "--ssl-keyfile=/etc/plumage-tls/tls.key", "--enable-ssl-refresh",
    }  # fmt: skip
    clients = {"--ssl-ca-certs=/etc/plumage-client-tls/ca.crt", "--ssl-cert-reqs=2"}
    assert {arg for arg in one["args"] if "ssl" in arg} == pair
    assert {arg for arg in both["args"] if "ssl" in arg} == pair | clients
    assert {"name": "WATCHFILES_FORCE_POLLING", "value": "true"} in one["env"]
    plain = engine(children(None, "VLLM"))
    assert not [arg for arg in plain["args"] if "ssl" in arg]
    assert "WATCHFILES_FORCE_POLLING" not in [variable["name"] for variable in plain["env"]]


def test_prometheus_verifies_as_routers_do() -> None:
    [plain, _] = children(None)["PodMonitor", "chat-engine"]["spec"]["podMetricsEndpoints"]
    assert (plain["port"], plain.get("scheme"), plain.get("tlsConfig")) == ("http", None, None)
    [own, agent] = children(BOTH)["PodMonitor", "chat-engine"]["spec"]["podMetricsEndpoints"]
    assert (own["port"], own["scheme"]) == ("https", "https")
    assert own["tlsConfig"] == {
        "ca": {"secret": {"name": "chat-engine-tls", "key": "ca.crt"}},
        "serverName": "chat-engine.default.svc",
        "cert": {"secret": {"name": "chat-client-tls", "key": "tls.crt"}},
        "keySecret": {"name": "chat-client-tls", "key": "tls.key"},
    }
    assert (agent["port"], "scheme" in agent) == ("agent", False)
    [one, _] = children(ONE_SIDE)["PodMonitor", "chat-engine"]["spec"]["podMetricsEndpoints"]
    assert set(one["tlsConfig"]) == {"ca", "serverName"}


@pytest.mark.parametrize("before", [None, ONE_SIDE])
def test_change_replaces_engines_and_routers(before: dict[str, Any] | None) -> None:
    old, new = children(before), children(BOTH)
    for name in ("chat-engine", "chat-router"):
        hashes = [
            made["Deployment", name]["spec"]["template"]["metadata"]["annotations"]["inference.plumage.dev/config-hash"]
            for made in (old, new)
        ]
        assert len(set(hashes)) == 2


def test_gateway_has_a_folder_for_each_pool_and_starts_without_its_secrets() -> None:
    pools = [attached(name) for name in ("chat", "code")]
    for pool in pools:
        pool.pool["spec"]["engine"]["tls"] = {**BOTH, "secretName": f"{pool.pool['metadata']['name']}-engine-tls"}
    world = Gateway(*pools)
    world.converge()
    made = world.objects[ROUTER]["spec"]["template"]["spec"]
    volumes = [one["secret"] for one in made["volumes"] if "tls" in one.get("secret", {}).get("secretName", "")]
    assert sorted(one["secretName"] for one in volumes) == [
        "chat-client-tls", "chat-client-tls", "chat-engine-tls", "code-engine-tls",
    ]  # fmt: skip
    assert all(one["optional"] for one in volumes)
    folders = {mount["name"]: mount["mountPath"] for mount in made["containers"][0]["volumeMounts"]}
    for pool in world.config["pools"]:
        tls = pool["engineTls"]
        assert tls["serverName"] == f"{pool['pool']}-engine.default.svc"
        assert {str(Path(tls[file]).parent) for file in ("caFile", "keyFile")} <= set(folders.values())
    assert len({pool["engineTls"]["caFile"] for pool in world.config["pools"]}) == 2


@pytest.mark.parametrize(
    ("tls", "picker", "reported"),
    [(ONE_SIDE, {}, "chat-engine.default.svc"), (BOTH, {}, "ca.crt of chat-client-tls trusts"), (None, {}, ""),
     (ONE_SIDE, None, "")],
)  # fmt: skip
def test_proxies_of_an_endpoint_picker_need_tls_of_their_own(
    tls: dict[str, Any] | None, picker: dict[str, Any] | None, reported: str
) -> None:
    """They connect to the engines themselves. The pool is served, and `Accepted` names what they need."""
    spec: dict[str, Any] = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}, "router": {}}
    if tls is not None:
        spec["engine"]["tls"] = tls
    if picker is not None:
        spec["router"]["endpointPicker"] = picker
    world = World(pool_object(spec))
    world.converge()
    accepted = world.condition("Accepted")
    assert accepted["status"] == "True"
    assert accepted["message"].startswith("spec.engine.tls has no effect on the proxies") is bool(reported)
    assert reported in accepted["message"]
