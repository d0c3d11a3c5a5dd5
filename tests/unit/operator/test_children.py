"""The children's files against their readers: engine, agent and router accept them unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.operator_world import CONFIG, pool_object

from plumage.cluster import ROUTER_METRICS_PORT
from plumage.settings.agent_config import AgentConfig
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.configuration import read_file
from plumage_engine.vllm.offload.disk_tier.options import DiskOptions, read_disk
from plumage_engine.vllm.settings import read_settings
from plumage_operator.kinds import PUBLISHED_POOL
from plumage_operator.observed import key_of
from plumage_operator.resources import CONFIG_HASH, PoolContext, build_children
from plumage_operator.resources.context import read_pool
from plumage_router.config import load_config

SIMULATOR = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}}


def children(
    spec: dict[str, Any] | None = None, replicas: int = 2, **config: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    context = PoolContext(read_pool(pool_object(spec or SIMULATOR)), replace(CONFIG, **config), replicas)
    return {key_of(child): child for child in build_children(context)}


def vllm(engine: dict[str, Any] | None = None, model: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"model": model or {"uri": "hf://org/model"}, "engine": engine or {}}


def pod(made: dict[tuple[str, str], dict[str, Any]], part: str = "engine") -> dict[str, Any]:
    spec: dict[str, Any] = made["Deployment", f"chat-{part}"]["spec"]["template"]["spec"]
    return spec


def engine(made: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    (container,) = pod(made)["containers"]
    return container


def rolls(before: dict[str, Any], after: dict[str, Any], part: str = "engine") -> bool:
    hashes = {
        children(spec)["Deployment", f"chat-{part}"]["spec"]["template"]["metadata"]["annotations"][CONFIG_HASH]
        for spec in (before, after)
    }
    return len(hashes) == 2


def with_(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = json.loads(json.dumps(spec))
    *way, last = path.split(".")
    inner = changed
    for name in way:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return dict(changed)


def test_unknown_fields_of_a_pool_reach_its_router_and_roll_nothing() -> None:
    changed = with_(SIMULATOR, "router.allowedRequestFields", ["priority", "my_field"])
    router = json.loads(children(changed)["ConfigMap", "chat-router"]["data"]["router.json"])
    assert router["allowedRequestFields"] == ["priority", "my_field"]
    assert not rolls(SIMULATOR, changed, "router")


def test_sorted_tools_of_a_pool_reach_its_router_and_roll_nothing() -> None:
    changed = with_(SIMULATOR, "router.sortTools", True)
    assert json.loads(children(changed)["ConfigMap", "chat-router"]["data"]["router.json"])["sortTools"] is True
    assert not rolls(SIMULATOR, changed, "router")


def test_engine_agent_and_router_accept_their_files(tmp_path: Path) -> None:
    made = children()
    files = made["ConfigMap", "chat-engine"]["data"] | made["ConfigMap", "chat-router"]["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    simulator = read_file(tmp_path / "engine.json", SimulatorConfig)
    assert (simulator.host, simulator.port, simulator.model) == ("0.0.0.0", 8000, "tiny-chat")
    settings = json.loads(files["agent.json"])
    (tmp_path / "agent.json").write_text(json.dumps({**settings, "replica": "chat-engine-0"}))
    agent = read_file(tmp_path / "agent.json", AgentConfig)
    assert str(agent.feather_file) == "/etc/plumage/engine.json", "the agent hands changes of it to the engine"
    assert agent.directory_url == "redis://chat-directory.default.svc:6379"
    assert agent.events_endpoint == simulator.events_endpoint
    router = load_config(tmp_path / "router.json")
    assert router.membership is not None
    assert router.membership.endpoint_slices.service == "chat-engine"
    assert json.loads(files["cordoned.json"]) == {"cordoned": []}


def test_plugin_accepts_its_settings() -> None:
    data = children(vllm({"hostMemory": {"capacity": "4Gi"}}))["ConfigMap", "chat-engine"]["data"]
    settings = read_settings(None, {"PLUMAGE_VLLM": data["plugin.json"]})
    assert settings is not None
    assert settings.feather is not None
    assert str(settings.routes.admin_token_file) == "/run/plumage/token"
    assert "engine.json" not in data
    assert json.loads(data["agent.json"])["featherFile"] == "/etc/plumage/plugin.json"


def test_vllm_flags_follow_the_manifest() -> None:
    spec = vllm({"tensorParallelSize": 2, "hostMemory": {"capacity": "4Gi"}, "args": ["--max-num-seqs=8"]},
                {"uri": "hf://org/model", "revision": "abc", "maxLength": 4096,
                 "tokenRef": {"name": "hub", "key": "t"}})  # fmt: skip
    container = engine(children(spec))
    flags = dict(part.split("=", 1) for part in container["args"] if "=" in part)
    assert (flags["--model"], flags["--served-model-name"], flags["--revision"]) == ("org/model", "model", "abc")
    assert (flags["--tensor-parallel-size"], flags["--max-model-len"]) == ("2", "4096")
    assert json.loads(flags["--kv-events-config"])["endpoint"] == "ipc:///run/plumage/events"
    extra = json.loads(flags["--kv-transfer-config"])["kv_connector_extra_config"]
    assert extra["cpu_bytes_to_use"] == 4 << 30
    assert "/metrics" in flags["--disable-access-log-for-endpoints"].split(","), (
        "the agent reads it four times a second"
    )
    assert "--enable-prompt-tokens-details" in container["args"]
    assert not any("include-usage" in argument for argument in container["args"]), (
        "the router requests each stream's usage"
    )
    assert container["args"][-1] == "--max-num-seqs=8"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    token = next(one for one in container["env"] if one["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "t"}
    assert container["image"] == "engine:1"


@pytest.mark.parametrize(
    ("named", "limits"),
    [
        ({}, {"nvidia.com/gpu": "1"}),
        ({"limits": {"memory": "8Gi"}, "requests": {"cpu": 1}}, {"memory": "8Gi", "nvidia.com/gpu": "1"}),
        ({"limits": {"rdma/hca": 1}}, {"rdma/hca": "1", "nvidia.com/gpu": "1"}),
        ({"limits": {"nvidia.com/gpu": 4}}, {"nvidia.com/gpu": "4"}),
        ({"limits": {"nvidia.com/gpu": 0}}, {}),
        ({"limits": {"nvidia.com/gpu": "0", "memory": "8Gi"}, "requests": {"nvidia.com/gpu": 0}}, {"memory": "8Gi"}),
        ({"requests": {"nvidia.com/gpu": 0}}, {}),
        *(
            ({"limits": {name: 1}}, {name: "1"})
            for name in (
                "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "amd.com/gpu", "amd.com/cpx_nps4",
                "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi", "google.com/tpu",
                "aws.amazon.com/neuroncore", "example.com/gpu", "volcano.sh/vgpu-number",
            )
        ),
    ],
    ids=str,
)  # fmt: skip
def test_vllm_requests_a_gpu_by_default(named: dict[str, Any], limits: dict[str, str]) -> None:
    resources = engine(children(vllm({"resources": named})))["resources"]
    assert resources["limits"] == {"memory": str(32 << 30), **limits}
    assert not any(name.endswith("/gpu") for name in resources["requests"])


def test_cpu_engine_with_several_workers_requests_no_gpu() -> None:
    spec = vllm({"tensorParallelSize": 2, "resources": {"limits": {"nvidia.com/gpu": 0}}})
    assert not any("gpu" in name for part in engine(children(spec))["resources"].values() for name in part)


def test_simulator_requests_no_gpu() -> None:
    assert not any("gpu" in name for part in engine(children())["resources"].values() for name in part)


def test_limit_of_vllm_without_a_request_becomes_the_request() -> None:
    """As Kubernetes fills it in: only the owner knows what a model needs."""
    resources = engine(children(vllm({"resources": {"limits": {"memory": "128Gi"}}})))["resources"]
    assert resources["requests"] == {"cpu": "1"}
    assert resources["limits"]["memory"] == "128Gi"


def test_shared_memory_of_vllm_counts_as_memory() -> None:
    plain, tiered = (
        engine(children(vllm({"tensorParallelSize": 2, **more})))["resources"]
        for more in ({"sharedMemory": "1Gi"}, {"sharedMemory": "9Gi"})
    )
    for part in ("requests", "limits"):
        assert int(tiered[part]["memory"]) - int(plain[part]["memory"]) == 8 << 30
    assert int(plain["limits"]["memory"]) == (2 * 32 + 1) << 30


def test_host_tier_fits_in_shared_memory() -> None:
    volumes = {one["name"]: one for one in pod(children(vllm({"hostMemory": {"capacity": "4Gi"}})))["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert int(volumes["shm"]["emptyDir"]["sizeLimit"]) > 4 << 30
    mounts = {one["mountPath"] for one in engine(children(vllm({"hostMemory": {"capacity": "4Gi"}})))["volumeMounts"]}
    assert {"/dev/shm", "/run/plumage", "/tmp", "/var/cache/vllm", "/models/hub"} <= mounts


@pytest.mark.parametrize("claim", [None, "kv"])
def test_disk_tier_has_its_own_volume(claim: str | None) -> None:
    disk = {"capacity": "100Gi"} | ({} if claim is None else {"claimName": claim})
    made = children(vllm({"hostMemory": {"capacity": "4Gi", "disk": disk}}))
    flags = dict(part.split("=", 1) for part in engine(made)["args"] if "=" in part)
    disk = read_disk(json.loads(flags["--kv-transfer-config"])["kv_connector_extra_config"])
    assert disk == DiskOptions(Path("/var/cache/plumage"), 98 << 30)
    volume = next(one for one in pod(made)["volumes"] if one["name"] == "disk")
    if claim is None:
        assert volume["emptyDir"]["sizeLimit"] == "100Gi"
    else:
        assert volume["persistentVolumeClaim"] == {"claimName": claim}
    assert {"name": "disk", "mountPath": "/var/cache/plumage"} in engine(made)["volumeMounts"]


@pytest.mark.parametrize(
    ("model", "path", "volume"),
    [
        ({"uri": "pvc://claim/llama/8b"}, "/models/model/llama/8b",
         {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}),
        ({"uri": "oci://registry/llama:1"}, "/models/model",
         {"image": {"reference": "registry/llama:1", "pullPolicy": "IfNotPresent"}}),
    ],
)  # fmt: skip
def test_model_on_a_volume_is_mounted_for_engine_agent_and_router(
    model: dict[str, Any], path: str, volume: dict[str, Any]
) -> None:
    made = children(vllm(model=model))
    assert f"--model={path}" in engine(made)["args"]
    for part in ("engine", "router"):
        assert {"name": "model", **volume} in pod(made, part)["volumes"]
    assert json.loads(made["ConfigMap", "chat-router"]["data"]["router.json"])["model"]["modelFolder"] == path
    agent = pod(made)["initContainers"][-1]
    assert {"name": "model", "mountPath": "/models/model", "readOnly": True} in agent["volumeMounts"]


def test_volumes_and_mounts_match() -> None:
    specs = [SIMULATOR, vllm(), vllm({"hostMemory": {"capacity": "1Gi", "disk": {"capacity": "1Gi"}}}),
             vllm(model={"uri": "builtin://tiny-llama"}),
             vllm(model={"uri": "s3://b/m", "tokenizer": "oci://r/t:1", "adapters": [{"name": "a", "uri": "pvc://c/a"}]}),
             {**SIMULATOR, "directory": {"redisRef": {"url": "rediss://r:1", "passwordRef": {"name": "p", "key": "k"},
                                                      "caRef": {"name": "c", "key": "k"}}},
              "router": {"tls": {"secretName": "t"}, "auth": {"apiKeysRef": {"name": "k", "key": "k"},
                                  "adminKeyRef": {"name": "a", "key": "k"}}}}]  # fmt: skip
    for spec in specs:
        for (kind, _), thing in children(spec).items():
            if kind != "Deployment":
                continue
            inside = thing["spec"]["template"]["spec"]
            volumes = [one["name"] for one in inside["volumes"]]
            containers = [*inside.get("initContainers", ()), *inside["containers"]]
            mounted = {one["name"] for container in containers for one in container["volumeMounts"]}
            assert len(volumes) == len(set(volumes)), spec
            assert mounted == set(volumes), (spec, thing["metadata"]["name"])
            for container in containers:
                paths = [one["mountPath"] for one in container["volumeMounts"]]
                assert len(paths) == len(set(paths))


def test_every_pod_keeps_the_restricted_standard() -> None:
    for spec in (SIMULATOR, vllm(), vllm(model={"uri": "builtin://tiny-llama"})):
        for (kind, _), thing in children(spec).items():
            if kind != "Deployment":
                continue
            inside = thing["spec"]["template"]["spec"]
            assert inside["securityContext"]["runAsNonRoot"]
            assert inside["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert inside["automountServiceAccountToken"] is False
            for container in [*inside.get("initContainers", ()), *inside["containers"]]:
                security = container["securityContext"]
                assert security["readOnlyRootFilesystem"]
                assert not security["allowPrivilegeEscalation"]
                assert security["capabilities"] == {"drop": ["ALL"]}


def test_engine_never_has_a_token_of_the_api_server() -> None:
    made = children()
    assert {"identity", "api"}.isdisjoint(one["name"] for one in engine(made)["volumeMounts"])
    agent = pod(made)["initContainers"][-1]
    assert agent["restartPolicy"] == "Always"
    assert {"identity", "api"} <= {one["name"] for one in agent["volumeMounts"]}


def test_grace_period_is_longer_than_the_drain() -> None:
    made = children(with_(SIMULATOR, "rollout.drainTimeoutSeconds", 77))
    assert pod(made)["terminationGracePeriodSeconds"] > 77
    hook = engine(made)["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[1:3] == ["-m", "plumage_engine.agent.drain"]
    assert "77" in hook


def test_scheduling_fields_reach_the_pods() -> None:
    fields = {
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "schedulerName": "other",
        "imagePullSecrets": [{"name": "pull"}],
    }
    inside = pod(children(vllm(fields)))
    for name, value in fields.items():
        assert inside[name] == value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine.feather.policy", "Fcfs"),
        ("engine.feather.chunkTokens", 128),
        ("router.policy", "RoundRobin"),
        ("router.limits.maxInFlight", 7),
        ("replicas", 5),
        ("networkPolicy.enabled", False),
        ("monitoring.enabled", True),
    ],
)
def test_live_settings_restart_no_engine(path: str, value: Any) -> None:
    assert not rolls(SIMULATOR, with_(SIMULATOR, path, value))
    assert not rolls(vllm(), with_(vllm(), path, value))


@pytest.mark.parametrize(("path", "value"), [("router.policy", "RoundRobin"), ("router.limits.maxInFlight", 7)])
def test_policy_and_limits_roll_no_router(path: str, value: Any) -> None:
    assert not rolls(SIMULATOR, with_(SIMULATOR, path, value), "router")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine.eviction.policy", "Lru"),
        ("engine.feather.orderBatch", True),
        ("engine.image", "other:1"),
        ("engine.env", [{"name": "A", "value": "b"}]),
        ("model.maxLength", 100),
        ("directory.warmup.maxTokens", 5),
    ],
)
def test_start_settings_restart_the_pods(path: str, value: Any) -> None:
    assert rolls(SIMULATOR, with_(SIMULATOR, path, value))
    assert rolls(vllm(), with_(vllm(), path, value))


def with_adapters(spec: dict[str, Any], **uris: str) -> dict[str, Any]:
    return with_(spec, "model.adapters", [{"name": name, "uri": uri} for name, uri in uris.items()])


@pytest.mark.parametrize("spec", [SIMULATOR, vllm(), vllm(model={"uri": "pvc://claim/model"})])
def test_adapters_without_a_volume_come_and_go_without_a_rollout(spec: dict[str, Any]) -> None:
    one = with_adapters(spec, sql="file:///sql")
    other = with_adapters(spec, law="hf://acme/law", sql="file:///other")
    assert pod(children(one)) == pod(children(other))
    assert not rolls(one, other)
    agent = json.loads(children(other)["ConfigMap", "chat-engine"]["data"]["agent.json"])
    assert [(adapter["name"], adapter["path"]) for adapter in agent["adapters"]] == [
        ("law", "acme/law"), ("sql", "/other"),
    ]  # fmt: skip


def test_first_adapter_and_new_volumes_roll_vllm() -> None:
    none, one = vllm(), with_adapters(vllm(), sql="file:///sql")
    assert "--enable-lora" not in engine(children(none))["args"]
    assert {"--enable-lora", "--max-loras=4", "--max-cpu-loras=64"} < set(engine(children(one))["args"])
    assert "--lora-modules" not in engine(children(one))["args"]
    mounted = with_adapters(vllm(), sql="file:///sql", law="pvc://claim/law")
    assert pod(children(one)) != pod(children(mounted))


def test_another_order_of_adapters_rolls_nothing() -> None:
    one = with_adapters(vllm(), sql="pvc://claim/sql", law="pvc://claim/law", chess="oci://registry/chess:1")
    other = with_adapters(vllm(), chess="oci://registry/chess:1", law="pvc://claim/law", sql="pvc://claim/sql")
    assert not rolls(one, other)
    assert pod(children(one)) == pod(children(other))


def test_volume_of_an_adapter_keeps_its_name() -> None:
    """Agents of older pods read the same list: a path must never hold another adapter's files."""

    def paths(spec: dict[str, Any]) -> dict[str, str]:
        agent = json.loads(children(spec)["ConfigMap", "chat-engine"]["data"]["agent.json"])
        return {adapter["name"]: adapter["path"] for adapter in agent["adapters"]}

    two = paths(with_adapters(vllm(), sql="pvc://claim/sql", law="pvc://claim/law"))
    left = with_adapters(vllm(), law="pvc://claim/law")
    assert paths(left)["law"] == two["law"] != two["sql"]
    (mount,) = [one for one in engine(children(left))["volumeMounts"] if one["name"].startswith("adapter-")]
    assert two["law"] == f"{mount['mountPath']}/law"
    assert paths(with_adapters(vllm(), law="oci://registry/law:2"))["law"] not in two.values()


def test_engine_with_adapters_may_reach_the_hub() -> None:
    offline = {"name": "HF_HUB_OFFLINE", "value": "1"}
    local = vllm(model={"uri": "pvc://claim/model"})
    assert offline in engine(children(local))["env"]
    assert offline not in engine(children(with_adapters(local, sql="hf://acme/sql")))["env"]


def test_hostile_values_stay_values() -> None:
    nasty = 'x"\n  - command: [rm, -rf, /] # {{ .Values }} $(POD_NAME)'
    made = children(vllm({"args": [f"--note={nasty}"], "env": [{"name": "A", "value": nasty}]}))
    assert engine(made)["args"][-1] == f"--note={nasty}"
    assert {"name": "A", "value": nasty} in engine(made)["env"]
    assert json.loads(json.dumps(made["ConfigMap", "chat-engine"]))["data"]


def test_network_policies_allow_router_agent_operator_and_monitoring_only() -> None:
    made = children(with_(SIMULATOR, "networkPolicy.monitoringNamespaces", ["prometheus"]))
    metrics = {"protocol": "TCP", "port": ROUTER_METRICS_PORT}
    ingress = made["NetworkPolicy", "chat-router"]["spec"]["ingress"]
    assert [rule["ports"] for rule in ingress if "from" in rule] == [[metrics]], "only the monitoring"
    rules = made["NetworkPolicy", "chat-engine"]["spec"]["ingress"]
    assert all(rule["from"] for rule in rules)
    assert made["NetworkPolicy", "chat-directory"]["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 6379}]
    text = json.dumps(rules)
    assert all(name in text for name in ("prometheus", CONFIG.namespace, "router"))
    (routers,) = [rule for rule in rules if "router" in json.dumps(rule)]
    assert routers["ports"] == [{"protocol": "TCP", "port": 8000}], "no router asks an agent"
    assert not [key for key in children(network_policies=False) if key[0] == "NetworkPolicy"]


def test_endpoint_picker_is_open_to_proxies_only() -> None:
    picker = {"port": 9100, "fallbacks": 2, "proxyNamespaces": ["edge"]}
    made = children(with_(SIMULATOR, "router.endpointPicker", picker))
    (container,) = made["Deployment", "chat-router"]["spec"]["template"]["spec"]["containers"]
    (inside,) = [one for one in container["ports"] if one["name"] == "picker"]
    settings = json.loads(made["ConfigMap", "chat-router"]["data"]["router.json"])
    assert settings["endpointPicker"] == {"port": inside["containerPort"], "fallbacks": 2}
    for component, number in (("router", inside["containerPort"]), ("engine", 8000)):
        rules = made["NetworkPolicy", f"chat-{component}"]["spec"]["ingress"]
        (rule,) = [one for one in rules if "edge" in json.dumps(one)]
        assert rule["ports"] == [{"protocol": "TCP", "port": number}]
    here = children(with_(SIMULATOR, "router.endpointPicker", {}))
    rules = here["NetworkPolicy", "chat-router"]["spec"]["ingress"]
    assert not [one for one in rules if {"protocol": "TCP", "port": 9002} in one["ports"]], "nobody by default"
    assert "picker" not in json.dumps(children()["Deployment", "chat-router"])


def test_published_pool_leads_gateways_to_engines_and_picker() -> None:
    picker = {"port": 9100, "inferencePool": {"failureMode": "FailOpen"}}
    made = children(with_(SIMULATOR, "router.endpointPicker", picker))
    published = made[PUBLISHED_POOL, "chat"]
    assert published["apiVersion"] == "inference.networking.k8s.io/v1"
    reference = published["spec"]["endpointPickerRef"]
    assert reference["failureMode"] == "FailOpen"
    service = made["Service", reference["name"]]
    (port,) = [one for one in service["spec"]["ports"] if one["port"] == reference["port"]["number"]]
    assert port["name"] == "picker"
    pod = made["Deployment", "chat-engine"]["spec"]["template"]
    chosen = published["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= pod["metadata"]["labels"].items()
    for component in ("router", "directory"):
        others = made["Deployment", f"chat-{component}"]["spec"]["template"]["metadata"]["labels"]
        assert not chosen.items() <= others.items()
    (engine,) = pod["spec"]["containers"]
    assert published["spec"]["targetPorts"] == [{"number": engine["ports"][0]["containerPort"]}]
    assert (PUBLISHED_POOL, "chat") not in children(with_(SIMULATOR, "router.endpointPicker", {}))


@pytest.mark.parametrize(
    ("tls", "name", "protocol"), [(None, "picker", "kubernetes.io/h2c"), ({"secretName": "s"}, "picker-tls", "https")]
)
def test_endpoint_picker_has_a_service_of_its_own(tls: dict[str, Any] | None, name: str, protocol: str) -> None:
    """The clients' Service may be open to other networks, and the picker gives the engine key away."""
    router = {"service": {"type": "LoadBalancer", "annotations": {"a": "b"}}, **({} if tls is None else {"tls": tls})}
    without = children({**SIMULATOR, "router": router})
    assert ("Service", "chat-picker") not in without
    made = children({**SIMULATOR, "router": {**router, "endpointPicker": {"port": 9100}}})
    assert made["Service", "chat-router"]["spec"] == without["Service", "chat-router"]["spec"]
    service = made["Service", "chat-picker"]
    assert service["spec"] == {
        "type": "ClusterIP",
        "selector": made["Service", "chat-router"]["spec"]["selector"],
        "ports": [{"name": name, "port": 9100, "targetPort": name, "protocol": "TCP", "appProtocol": protocol}],
    }
    assert "a" not in service["metadata"]["annotations"]
    (container,) = pod(made, "router")["containers"]
    (inside,) = [one for one in container["ports"] if one["name"] == name]
    settings = json.loads(made["ConfigMap", "chat-router"]["data"]["router.json"])
    assert settings["endpointPicker"]["port"] == inside["containerPort"]
    assert ("tls" in settings["listen"]) is (tls is not None)


def test_broken_replica_does_not_block_a_node_drain() -> None:
    """A pod that is not ready may be evicted; of the ready ones, one at a time."""
    made = children()
    for part in ("engine", "router"):
        spec = made["PodDisruptionBudget", f"chat-{part}"]["spec"]
        assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_every_container_has_requests_and_a_memory_limit() -> None:
    fetched = {"model": {"uri": "hf://org/model"}, "engine": {"runtime": "Simulator"}}
    written = vllm(model={"uri": "builtin://tiny-llama"})
    names = set()
    for spec in (SIMULATOR, fetched, vllm(), written):
        made = children(spec)
        for part in ("engine", "router", "directory"):
            inside = pod(made, part)
            for one in [*inside.get("initContainers", ()), *inside["containers"]]:
                names.add(one["name"])
                assert {"cpu", "memory"} <= one["resources"]["requests"].keys(), one["name"]
                assert "memory" in one["resources"]["limits"], one["name"]
    assert names == {"engine", "agent", "router", "directory", "tokenizer", "weights"}


NAMED = {"requests": {"cpu": "11m", "memory": "300Mi"}, "limits": {"cpu": "22m", "memory": "400Mi"}}


@pytest.mark.parametrize(
    ("path", "part", "container"),
    [
        ("engine.resources", "engine", "engine"),
        ("engine.agentResources", "engine", "agent"),
        ("model.fetchResources", "engine", "tokenizer"),
        ("model.fetchResources", "router", "tokenizer"),
        ("router.resources", "router", "router"),
        ("directory.managed.resources", "directory", "directory"),
    ],
)
def test_every_container_has_a_field_for_its_resources(path: str, part: str, container: str) -> None:
    spec = {"model": {"uri": "hf://org/model"}, "engine": {"runtime": "Simulator"}}
    inside = pod(children(with_(spec, path, NAMED)), part)
    found = {one["name"]: one["resources"] for one in [*inside.get("initContainers", ()), *inside["containers"]]}
    assert found[container] == NAMED


SCHEDULING = {
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}


@pytest.mark.parametrize("part", ["engine", "router", "directory"])
def test_each_component_has_the_same_scheduling_fields(part: str) -> None:
    spec = with_(SIMULATOR, "directory.managed" if part == "directory" else part, {})
    component = {**SCHEDULING, **({"runtime": "Simulator"} if part == "engine" else {})}
    made = children(with_(spec, "directory.managed" if part == "directory" else part, component))
    assert {name: pod(made, part)[name] for name in SCHEDULING} == SCHEDULING
    others = {"engine", "router", "directory"} - {part}
    assert not any("priorityClassName" in pod(made, other) for other in others)


@pytest.mark.parametrize("part", ["engine", "router"])
def test_replicas_spread_over_nodes(part: str) -> None:
    made = children()
    (spread,) = pod(made, part)["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    labels = made["Deployment", f"chat-{part}"]["spec"]["template"]["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items(), "it counts these pods"
