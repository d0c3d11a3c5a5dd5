"""The engines of a pool: Deployment, ConfigMap, headless Service, and the containers of vLLM and the simulator. Pure.

A pod is one replica. The agent is a native sidecar: it starts first and makes the token that both containers share. It
ends last, so that the engine's preStop hook can drain through it. The pod is ready when both are: the engine answers,
and the agent has warmed it. Where the engine asks clients for a certificate, its probes are a program that has one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from plumage.api.v1alpha1.gpus import GPU, is_gpu, names_gpu
from plumage.cluster import AGENT_PORT, CONFIG_FOLDER, ENGINE_PORT, RUN_FOLDER, selector_of
from plumage.endpoint_slices import ENGINE_PORT_NAME, ENGINE_TLS_PORT_NAME
from plumage.quantity import Quantity
from plumage.settings.agent_config import ADAPTER_SECONDS
from plumage.settings.vllm import ROUTES, tls_environment, tracing_environment, vllm_flags
from plumage.version_skew import Settings, marked
from plumage_operator.resources import settings
from plumage_operator.resources.context import Child, PoolContext
from plumage_operator.resources.model_files import adapter_files, hub_variables, tokenizer_files, weights_files
from plumage_operator.resources.settings import keys_mount, keys_volume
from plumage_operator.resources.workload import (
    AGENT,
    API_MOUNT,
    CONFIG_MOUNT,
    IDENTITY_MOUNT,
    POD_NAME,
    SIMULATOR,
    TERMINATION_MESSAGE,
    TMP_MOUNT,
    ResourceDefaults,
    api_volume,
    config_volume,
    container_security,
    deployment,
    http_probe,
    identity_volume,
    memory_volume,
    placement_fields,
    pod_security,
    scratch_volume,
    with_defaults,
)

__all__ = ["SHUTDOWN_SECONDS", "build_config", "build_deployment", "build_service", "engine_port_name"]

_TLS_PORT: Final = 8443
"""A Service's ports differ in number. Nobody connects to this one, because the Service has no address of its own."""

_RUN_MOUNT: Final = {"name": "run", "mountPath": RUN_FOLDER}

_AFTER_DRAIN = 30  # seconds: for the router to notice, and for the engine to end after SIGTERM

_SIMULATOR_SECONDS = 60


def build_config(context: PoolContext) -> Child:
    """The settings files of engine and agent."""
    simulated = context.pool.spec.engine.runtime == "Simulator"
    engine: Settings = settings.simulator_settings(context) if simulated else settings.plugin_settings(context)
    files = {settings.engine_key(context): engine, "agent.json": settings.agent_settings(context)}
    data = {name: json.dumps(marked(content.written()), sort_keys=True, indent=1) for name, content in files.items()}
    return context.child("v1", "ConfigMap", "engine", {"data": data})


def build_service(context: PoolContext) -> Child:
    """Builds the Service of the engines. Its EndpointSlices are the membership.

    So it also publishes pods that are not ready: they are Warming. A pod has one of the engine's two ports. Both are
    here: while a rollout adds or removes TLS, the pool has pods of both kinds. Routers find out by a port's name.
    """
    ports = [
        {"name": ENGINE_PORT_NAME, "port": ENGINE_PORT, "targetPort": ENGINE_PORT_NAME, "protocol": "TCP"},
        {"name": ENGINE_TLS_PORT_NAME, "port": _TLS_PORT, "targetPort": ENGINE_TLS_PORT_NAME, "protocol": "TCP"},
        {"name": "agent", "port": AGENT_PORT, "targetPort": "agent", "protocol": "TCP"},
    ]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector_of(context.pool.metadata.name, "engine"),
        "ports": ports,
    }
    return context.child("v1", "Service", "engine", {"spec": spec})


def build_deployment(context: PoolContext) -> Child:
    """All replicas. A surge comes before unavailability: an old replica ends only when a new one is warm."""
    rollout, warmup = context.pool.spec.rollout, context.pool.spec.directory.warmup
    adapters = int(ADAPTER_SECONDS) if context.pool.spec.model.adapters else 0
    rolling = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return deployment(
        context,
        "engine",
        _pod(context),
        replicas=context.replicas,
        strategy={"type": "RollingUpdate", "rollingUpdate": rolling},
        restarts=settings.engine_restart_settings(context),
        deadline=_start_seconds(context) + warmup.timeout_seconds + adapters + 60,
    )


def _start_seconds(context: PoolContext) -> int:
    engine = context.pool.spec.engine
    return _SIMULATOR_SECONDS if engine.runtime == "Simulator" else engine.startup_timeout_seconds


def _pod(context: PoolContext) -> dict[str, Any]:
    vllm = context.pool.spec.engine.runtime == "VLLM"
    fetches = [*(weights_files(context).fetch if vllm else ()), *tokenizer_files(context).fetch]
    return {
        "serviceAccountName": settings.engine_account(context),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": context.pool.spec.rollout.drain_timeout_seconds + _AFTER_DRAIN,
        "initContainers": [*fetches, _agent(context)],
        "containers": [_engine(context)],
        "volumes": _volumes(context),
        **_scheduling(context),
    }


def _agent(context: PoolContext) -> dict[str, Any]:
    return {
        "name": "agent",
        "image": context.config.image,
        "imagePullPolicy": context.config.pull_policy,
        "restartPolicy": "Always",
        "command": ["python3", "-m", "plumage_engine.agent"],
        "args": [f"--config={CONFIG_FOLDER}/agent.json", "--replica=$(POD_NAME)"],
        "env": [POD_NAME],
        "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "startupProbe": http_probe("/healthz", AGENT_PORT, period=1, failures=120),
        "readinessProbe": http_probe("/readyz", AGENT_PORT, period=2, failures=2),
        "livenessProbe": http_probe("/healthz", AGENT_PORT, period=10, failures=6, timeout=5),
        "resources": with_defaults(context.pool.spec.engine.agent_resources, AGENT),
        "volumeMounts": [
            _RUN_MOUNT, CONFIG_MOUNT, IDENTITY_MOUNT, API_MOUNT, TMP_MOUNT, keys_mount(context),
            *tokenizer_files(context).mounts, *settings.directory_mounts(context), *_client_mounts(context),
        ],
        "securityContext": container_security(),
        **TERMINATION_MESSAGE,
    }  # fmt: skip


def _engine(context: PoolContext) -> dict[str, Any]:
    drain = ["python3", "-m", "plumage_engine.agent.drain", "--timeout"]
    drain.append(str(context.pool.spec.rollout.drain_timeout_seconds))
    own = vllm_container(context) if context.pool.spec.engine.runtime == "VLLM" else _simulator(context)
    return {
        "name": "engine",
        "image": _image(context),
        "imagePullPolicy": context.pool.spec.engine.image_pull_policy,
        **own,
        "ports": [{"name": engine_port_name(context), "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "startupProbe": _probe(context, period=2, failures=-(-_start_seconds(context) // 2), timeout=2),
        "readinessProbe": _probe(context, period=5, failures=3, timeout=5),
        "livenessProbe": _probe(context, period=10, failures=6, timeout=10),
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        "volumeMounts": [
            _RUN_MOUNT, TMP_MOUNT, *own["volumeMounts"],
            *(secret.as_mount() for secret in settings.engine_certificates(context)),
        ],
        "securityContext": container_security(),
        **TERMINATION_MESSAGE,
    }  # fmt: skip


def engine_port_name(context: PoolContext) -> str:
    """The name of the engine's port, by which routers know what it serves."""
    return ENGINE_PORT_NAME if context.pool.spec.engine.tls is None else ENGINE_TLS_PORT_NAME


def _client_mounts(context: PoolContext) -> list[dict[str, Any]]:
    """The certificate that the agent shows to its engine, if that asks for one."""
    return [one.as_mount() for one in settings.engine_certificates(context) if one.folder == settings.CLIENT_TLS_FOLDER]


def _probe(context: PoolContext, *, period: int, failures: int, timeout: int) -> dict[str, Any]:
    """The kubelet verifies no certificate and has none."""
    tls = settings.engine_sockets(context).tls
    if tls is None or tls.client is None:
        secure = tls is not None
        return http_probe("/health", ENGINE_PORT, period=period, failures=failures, timeout=timeout, tls=secure)
    command = ["python3", "-m", "plumage_engine.agent.probe", "--timeout", str(timeout)]
    command += ["--certificate", tls.client.certificate, "--key", tls.client.key]
    return {
        "exec": {"command": command},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def _simulator(context: PoolContext) -> dict[str, Any]:
    given = [one.model_dump(exclude_none=True, by_alias=True) for one in context.pool.spec.engine.env]
    return {
        "command": ["python3", "-m", "plumage_engine.simulator"],
        "args": [f"--config={CONFIG_FOLDER}/engine.json"],
        "env": [POD_NAME, *given],
        "resources": with_defaults(context.pool.spec.engine.resources, SIMULATOR),
        "volumeMounts": [CONFIG_MOUNT, keys_mount(context), *tokenizer_files(context).mounts],
    }


def _image(context: PoolContext) -> str:
    engine = context.pool.spec.engine
    return engine.image or (context.config.image if engine.runtime == "Simulator" else context.config.engine_image)


def _volumes(context: PoolContext) -> list[dict[str, Any]]:
    volumes = [
        memory_volume("run", "64Mi"), config_volume(context.name("engine")), identity_volume(), api_volume(),
        scratch_volume(), keys_volume(context), *tokenizer_files(context).volumes, *settings.directory_volumes(context),
        *(secret.as_volume() for secret in settings.engine_certificates(context)),
    ]  # fmt: skip
    vllm = vllm_volumes(context) if context.pool.spec.engine.runtime == "VLLM" else []
    named = {volume["name"]: volume for volume in [*volumes, *vllm]}  # weights and tokenizer may share a volume
    return list(named.values())


def _scheduling(context: PoolContext) -> dict[str, Any]:
    """The pod fields that a manifest may set, by allow-list, unchanged."""
    engine = context.pool.spec.engine
    secrets = [*({"name": name} for name in context.config.pull_secrets)]
    secrets += [{"name": one.name} for one in engine.image_pull_secrets]
    fields = {
        "runtimeClassName": engine.runtime_class_name,
        "schedulerName": engine.scheduler_name,
        "imagePullSecrets": secrets,
    }
    return {
        **placement_fields(engine, context.selector("engine")),
        **{name: value for name, value in fields.items() if value},
    }


SHUTDOWN_SECONDS: Final = 15
"""For requests that are still in flight after the drain; below the 30 s by which the grace period exceeds the drain."""

_CACHE = "/var/cache/vllm"  # hostMemory.disk.path is beside it by default

_GIB = 1 << 30


def vllm_container(context: PoolContext) -> dict[str, Any]:
    """The fields that differ from the simulator's container: command, arguments, environment, mounts, resources."""
    return {
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": [*_flags(context)],
        "env": _environment(context),
        "volumeMounts": [*weights_files(context).mounts, *_adapter_mounts(context), *_own_mounts(context)],
        "resources": _resources(context),
    }


def vllm_volumes(context: PoolContext) -> list[dict[str, Any]]:
    """The volumes of `vllm_container`."""
    engine = context.pool.spec.engine
    cache, volumes = engine.model_cache, [*weights_files(context).volumes]
    of_adapters = [volume for place in adapter_files(context.pool).values() for volume in place.volumes]
    volumes += sorted(of_adapters, key=lambda one: str(one["name"]))
    if cache.claim_name is not None:
        volumes.append(_claim("hub", cache.claim_name))
    else:
        volumes.append(scratch_volume("hub", None if cache.size_limit is None else str(cache.size_limit)))
    if (shared := _shared_memory(context)) is not None:
        volumes.append(memory_volume("shm", str(shared)))
    if engine.host_memory is not None and (disk := engine.host_memory.disk) is not None:
        own = scratch_volume("disk", str(disk.capacity))
        volumes.append(own if disk.claim_name is None else _claim("disk", disk.claim_name))
    return [*volumes, scratch_volume("cache", None)]


def _flags(context: PoolContext) -> list[str]:
    model = context.pool.spec.model
    flags = vllm_flags(
        context.pool,
        settings.engine_sockets(context),
        model=weights_files(context).path,
        host=settings.ALL_ADDRESSES,
        port=ENGINE_PORT,
        shutdown_seconds=SHUTDOWN_SECONDS,
    )
    own = len(flags) - len(context.pool.spec.engine.args)  # spec.engine.args stay last, because the last one wins
    more = [f"--revision={model.revision}"] if model.revision and model.uri.startswith("hf://") else []
    if model.uri.startswith("s3://"):
        more.append("--load-format=runai_streamer")
    return [*flags[:own], *more, *flags[own:]]


def _environment(context: PoolContext) -> list[dict[str, Any]]:
    """The environment.

    A read-only root filesystem needs every cache on a volume. The plugin's settings come from the ConfigMap, so that
    settings which may change live change no pod.
    """
    plugin = {"configMapKeyRef": {"name": context.name("engine"), "key": settings.PLUGIN_KEY}}
    folders = {
        "HOME": _CACHE,
        "XDG_CACHE_HOME": _CACHE,
        "VLLM_CACHE_ROOT": f"{_CACHE}/vllm",
        "TRITON_CACHE_DIR": f"{_CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{_CACHE}/inductor",
        "FLASHINFER_WORKSPACE_BASE": _CACHE,
        "HF_HOME": "/models/hub",
        "VLLM_PLUGINS": ROUTES,
        "VLLM_NO_USAGE_STATS": "1",
        **tracing_environment(context.pool),
        **tls_environment(settings.engine_sockets(context).tls),
    }
    model = context.pool.spec.model  # an adapter may come from the hub, now or later
    if not model.uri.startswith("hf://") and not model.adapters:
        folders["HF_HUB_OFFLINE"] = "1"
    theirs = {one.name for one in context.pool.spec.engine.env}
    own = [{"name": name, "value": value} for name, value in folders.items() if name not in theirs]
    given = [one.model_dump(exclude_none=True, by_alias=True) for one in context.pool.spec.engine.env]
    ours = [{"name": "PLUMAGE_VLLM", "valueFrom": plugin}, settings.engine_variable(context)]
    return [*own, *ours, *hub_variables(context, token_only=True), *given]


def _adapter_mounts(context: PoolContext) -> list[dict[str, Any]]:
    mounts = [mount for place in adapter_files(context.pool).values() for mount in place.mounts]
    return sorted(mounts, key=lambda one: str(one["name"]))


def _own_mounts(context: PoolContext) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "hub", "mountPath": "/models/hub"},
        {"name": "cache", "mountPath": _CACHE},
    ]
    if _shared_memory(context) is not None:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    memory = context.pool.spec.engine.host_memory
    if memory is not None and memory.disk is not None:
        mounts.append({"name": "disk", "mountPath": memory.disk.path})
    return mounts


def _shared_memory(context: PoolContext) -> int | None:
    """Bytes of /dev/shm, or None.

    The manifest's value or what several GPUs need, plus the host memory tier, which vLLM maps there.
    """
    engine = context.pool.spec.engine
    size = int(engine.shared_memory) if engine.shared_memory is not None else 0
    if engine.shared_memory is None and engine.tensor_parallel_size > 1:
        size = _GIB
    tier = engine.host_memory
    if tier is not None and tier.capacity is not None:
        size = max(size, _GIB // 4) + int(tier.capacity)
    return size or None


def _resources(context: PoolContext) -> dict[str, Any]:
    """The manifest's resources, plus the GPUs of a replica if the manifest names none.

    Only the model's owner knows what it needs. A limit without a request is also the request, as in Kubernetes.
    """
    engine = context.pool.spec.engine
    given = engine.resources
    resources = with_defaults(given, _defaults(context))
    requests = {
        name: one for name, one in resources["requests"].items() if name in given.requests or name not in given.limits
    }
    limits = dict(resources["limits"])
    if not names_gpu([*given.requests, *given.limits]):
        limits[GPU] = str(engine.tensor_parallel_size)
    return {"requests": _without_zero_gpus(requests), "limits": _without_zero_gpus(limits)}


def _defaults(context: PoolContext) -> ResourceDefaults:
    """A worker for each GPU, with its CUDA context, compiled graphs and a shard that is being loaded.

    /dev/shm counts as memory. The limit is wide: it bounds a leak, and does not keep a model from loading.
    """
    shared = _shared_memory(context) or 0
    workers = context.pool.spec.engine.tensor_parallel_size
    return ResourceDefaults("1", str(4 * _GIB + shared), str(32 * _GIB * workers + shared))


def _without_zero_gpus(amounts: Mapping[str, str]) -> dict[str, str]:
    """Without GPUs of amount 0: a pod asks for none by not naming them."""
    return {name: amount for name, amount in amounts.items() if Quantity(amount).value or not is_gpu(name)}


def _claim(volume: str, claim: str) -> dict[str, Any]:
    return {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
