"""The engines of a pool: Deployment, ConfigMap, headless Service. Pure.

A pod is one replica. The agent is a native sidecar: it starts first and makes the token that both containers share. It
ends last, so that the engine's preStop hook can drain through it. The pod is ready when both are: the engine answers,
and the agent has warmed it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from plumage.cluster import AGENT_PORT, CONFIG_FOLDER, ENGINE_PORT, RUN_FOLDER, selector_of
from plumage.version_skew import marked
from plumage_operator.resources import settings
from plumage_operator.resources.context import Child, PoolContext
from plumage_operator.resources.model_files import tokenizer_files, weights_files
from plumage_operator.resources.settings import keys_mount, keys_volume
from plumage_operator.resources.vllm import vllm_container, vllm_volumes
from plumage_operator.resources.workload import (
    AGENT,
    API_MOUNT,
    CONFIG_MOUNT,
    IDENTITY_MOUNT,
    POD_NAME,
    SIMULATOR,
    TERMINATION_MESSAGE,
    TMP_MOUNT,
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

__all__ = ["build_config", "build_deployment", "build_service"]

_RUN_MOUNT: Final = {"name": "run", "mountPath": RUN_FOLDER}

_AFTER_DRAIN = 30  # seconds: for the router to notice, and for the engine to end after SIGTERM

_SIMULATOR_SECONDS = 60


def build_config(context: PoolContext) -> Child:
    """The settings files of engine and agent."""
    simulated = context.pool.spec.engine.runtime == "Simulator"
    engine = settings.simulator_settings(context) if simulated else settings.plugin_settings(context)
    files = {settings.engine_key(context): engine, "agent.json": settings.agent_settings(context)}
    data = {name: json.dumps(marked(content), sort_keys=True, indent=1) for name, content in files.items()}
    return context.child("v1", "ConfigMap", "engine", {"data": data})


def build_service(context: PoolContext) -> Child:
    """Its EndpointSlices are the membership. So it also publishes pods that are not ready: they are Warming."""
    ports = [
        {"name": "http", "port": ENGINE_PORT, "targetPort": "http", "protocol": "TCP"},
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
    rolling = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return deployment(
        context,
        "engine",
        _pod(context),
        replicas=context.replicas,
        strategy={"type": "RollingUpdate", "rollingUpdate": rolling},
        restarts=settings.engine_restart_settings(context),
        deadline=_start_seconds(context) + warmup.timeout_seconds + 60,
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
            *tokenizer_files(context).mounts, *settings.directory_mounts(context),
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
        "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "startupProbe": http_probe("/health", ENGINE_PORT, period=2, failures=-(-_start_seconds(context) // 2)),
        "readinessProbe": http_probe("/health", ENGINE_PORT, period=5, failures=3, timeout=5),
        "livenessProbe": http_probe("/health", ENGINE_PORT, period=10, failures=6, timeout=10),
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        "volumeMounts": [_RUN_MOUNT, TMP_MOUNT, *own["volumeMounts"]],
        "securityContext": container_security(),
        **TERMINATION_MESSAGE,
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
