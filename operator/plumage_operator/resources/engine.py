"""The engines of a pool: Deployment, ConfigMap, headless Service.

A pod is one replica. The agent is a native sidecar: it starts first, makes the token that both share, and ends last, so
that the drain of the engine's preStop hook finds it. Both are ready before the pod is: the engine answers, and the
agent has warmed it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from plumage.cluster import AGENT_PORT, CONFIG_FOLDER, ENGINE_PORT, RUN_FOLDER, selector_of
from plumage.newer import marked
from plumage_operator.resources import settings
from plumage_operator.resources.context import Child, Scene
from plumage_operator.resources.model_files import tokenizer_place, weights_place
from plumage_operator.resources.settings import keys_mount, keys_volume
from plumage_operator.resources.vllm import vllm_container, vllm_volumes
from plumage_operator.resources.workload import (
    AGENT,
    API_MOUNT,
    CONFIG_MOUNT,
    IDENTITY_MOUNT,
    POD_NAME,
    SIMULATOR,
    TELLS_WHY,
    TMP_MOUNT,
    api_volume,
    config_volume,
    container_security,
    deployment,
    filled,
    http_probe,
    identity_volume,
    memory_volume,
    placed,
    pod_security,
    scratch_volume,
)

__all__ = ["build_config", "build_deployment", "build_service"]

_RUN_MOUNT: Final = {"name": "run", "mountPath": RUN_FOLDER}

_AFTER_DRAIN = 30  # seconds: the router hears of it, SIGTERM, and what the engine needs to end

_SIMULATOR_SECONDS = 60


def build_config(scene: Scene) -> Child:
    """What the files say that engine and agent read."""
    simulated = scene.pool.spec.engine.runtime == "Simulator"
    engine = settings.simulator(scene) if simulated else settings.vllm_plugin(scene)
    files = {settings.engine_key(scene): engine, "agent.json": settings.agent(scene)}
    data = {name: json.dumps(marked(content), sort_keys=True, indent=1) for name, content in files.items()}
    return scene.child("v1", "ConfigMap", "engine", {"data": data})


def build_service(scene: Scene) -> Child:
    """Its EndpointSlices are the membership, so it publishes pods that are not ready, too: they are Warming."""
    ports = [
        {"name": "http", "port": ENGINE_PORT, "targetPort": "http", "protocol": "TCP"},
        {"name": "agent", "port": AGENT_PORT, "targetPort": "agent", "protocol": "TCP"},
    ]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector_of(scene.pool.metadata.name, "engine"),
        "ports": ports,
    }
    return scene.child("v1", "Service", "engine", {"spec": spec})


def build_deployment(scene: Scene) -> Child:
    """All replicas. maxSurge before maxUnavailable: an old one goes only when a new one is warm."""
    rollout, warmup = scene.pool.spec.rollout, scene.pool.spec.directory.warmup
    rolling = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return deployment(
        scene,
        "engine",
        _pod(scene),
        replicas=scene.replicas,
        strategy={"type": "RollingUpdate", "rollingUpdate": rolling},
        restarts=settings.restarts_engine(scene),
        deadline=_start_seconds(scene) + warmup.timeout_seconds + 60,
    )


def _start_seconds(scene: Scene) -> int:
    engine = scene.pool.spec.engine
    return _SIMULATOR_SECONDS if engine.runtime == "Simulator" else engine.startup_timeout_seconds


def _pod(scene: Scene) -> dict[str, Any]:
    vllm = scene.pool.spec.engine.runtime == "VLLM"
    fetches = [*(weights_place(scene).fetch if vllm else ()), *tokenizer_place(scene).fetch]
    return {
        "serviceAccountName": settings.engine_account(scene),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": scene.pool.spec.rollout.drain_timeout_seconds + _AFTER_DRAIN,
        "initContainers": [*fetches, _agent(scene)],
        "containers": [_engine(scene)],
        "volumes": _volumes(scene),
        **_scheduling(scene),
    }


def _agent(scene: Scene) -> dict[str, Any]:
    return {
        "name": "agent",
        "image": scene.site.image,
        "imagePullPolicy": scene.site.pull_policy,
        "restartPolicy": "Always",
        "command": ["python3", "-m", "plumage_engine.agent"],
        "args": [f"--config={CONFIG_FOLDER}/agent.json", "--replica=$(POD_NAME)"],
        "env": [POD_NAME],
        "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "startupProbe": http_probe("/healthz", AGENT_PORT, period=1, failures=120),
        "readinessProbe": http_probe("/readyz", AGENT_PORT, period=2, failures=2),
        "livenessProbe": http_probe("/healthz", AGENT_PORT, period=10, failures=6, timeout=5),
        "resources": filled(scene.pool.spec.engine.agent_resources, AGENT),
        "volumeMounts": [
            _RUN_MOUNT, CONFIG_MOUNT, IDENTITY_MOUNT, API_MOUNT, TMP_MOUNT, keys_mount(scene),
            *tokenizer_place(scene).mounts, *settings.directory_mounts(scene),
        ],
        "securityContext": container_security(),
        **TELLS_WHY,
    }  # fmt: skip


def _engine(scene: Scene) -> dict[str, Any]:
    drain = ["python3", "-m", "plumage_engine.agent.drain", "--timeout"]
    drain.append(str(scene.pool.spec.rollout.drain_timeout_seconds))
    differs = vllm_container(scene) if scene.pool.spec.engine.runtime == "VLLM" else _simulator(scene)
    return {
        "name": "engine",
        "image": _image(scene),
        "imagePullPolicy": scene.pool.spec.engine.image_pull_policy,
        **differs,
        "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "startupProbe": http_probe("/health", ENGINE_PORT, period=2, failures=-(-_start_seconds(scene) // 2)),
        "readinessProbe": http_probe("/health", ENGINE_PORT, period=5, failures=3, timeout=5),
        "livenessProbe": http_probe("/health", ENGINE_PORT, period=10, failures=6, timeout=10),
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        "volumeMounts": [_RUN_MOUNT, TMP_MOUNT, *differs["volumeMounts"]],
        "securityContext": container_security(),
        **TELLS_WHY,
    }


def _simulator(scene: Scene) -> dict[str, Any]:
    given = [one.model_dump(exclude_none=True, by_alias=True) for one in scene.pool.spec.engine.env]
    return {
        "command": ["python3", "-m", "plumage_engine.simulator"],
        "args": [f"--config={CONFIG_FOLDER}/engine.json"],
        "env": [POD_NAME, *given],
        "resources": filled(scene.pool.spec.engine.resources, SIMULATOR),
        "volumeMounts": [CONFIG_MOUNT, keys_mount(scene), *tokenizer_place(scene).mounts],
    }


def _image(scene: Scene) -> str:
    engine = scene.pool.spec.engine
    return engine.image or (scene.site.image if engine.runtime == "Simulator" else scene.site.engine_image)


def _volumes(scene: Scene) -> list[dict[str, Any]]:
    volumes = [
        memory_volume("run", "64Mi"), config_volume(scene.name("engine")), identity_volume(), api_volume(),
        scratch_volume(), keys_volume(scene), *tokenizer_place(scene).volumes, *settings.directory_volumes(scene),
    ]  # fmt: skip
    vllm = vllm_volumes(scene) if scene.pool.spec.engine.runtime == "VLLM" else []
    named = {volume["name"]: volume for volume in [*volumes, *vllm]}  # weights and tokenizer may share one
    return list(named.values())


def _scheduling(scene: Scene) -> dict[str, Any]:
    """The pod fields that a manifest may set, by allow-list, as they are."""
    engine = scene.pool.spec.engine
    secrets = [*({"name": name} for name in scene.site.pull_secrets)]
    secrets += [{"name": one.name} for one in engine.image_pull_secrets]
    fields = {
        "runtimeClassName": engine.runtime_class_name,
        "schedulerName": engine.scheduler_name,
        "imagePullSecrets": secrets,
    }
    return {
        **placed(engine, scene.selector("engine")),
        **{name: value for name, value in fields.items() if value},
    }
