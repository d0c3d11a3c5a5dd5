"""Manifests that together set every field. A test changes a field in them to see what depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

__all__ = ["GATEWAY", "POOLS", "put"]

_SECRET: Final = {"name": "keys", "key": "key"}
_TERM: Final = {
    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}],
}
_SELECTOR: Final = {
    "matchLabels": {"app": "a"},
    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
}
_POD_TERM: Final = {
    "topologyKey": "zone",
    "labelSelector": _SELECTOR,
    "namespaces": ["one"],
    "namespaceSelector": _SELECTOR,
    "matchLabelKeys": ["app"],
    "mismatchLabelKeys": ["tenant"],
}
_POD_AFFINITY: Final = {
    "requiredDuringSchedulingIgnoredDuringExecution": [_POD_TERM],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": _POD_TERM}],
}
_PLACE: Final = {
    "nodeSelector": {"pool": "a"},
    "tolerations": [
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5},
    ],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": _TERM}],
        },
        "podAffinity": _POD_AFFINITY,
        "podAntiAffinity": _POD_AFFINITY,
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": _SELECTOR,
            "minDomains": 2,
            "nodeAffinityPolicy": "Honor",
            "nodeTaintsPolicy": "Ignore",
            "matchLabelKeys": ["app"],
        }
    ],
    "priorityClassName": "high",
}
_RESOURCES: Final = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "8Gi"}}

VLLM: Final[dict[str, Any]] = {
    "model": {
        "uri": "hf://org/model",
        "name": "chat",
        "revision": "main",
        "tokenRef": _SECRET,
        "tokenizer": "hf://org/tokenizer",
        "aliases": ["gpt"],
        "adapters": [{"name": "law", "uri": "hf://org/law"}],
        "maxLength": 4096,
    },
    "engine": {
        "runtime": "VLLM",
        "image": "engine:1",
        "imagePullPolicy": "Always",
        "args": ["--enforce-eager"],
        "env": [
            {"name": "A", "value": "a"},
            {"name": "B", "valueFrom": {"secretKeyRef": _SECRET}},
            {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "key"}}},
        ],
        "resources": {**_RESOURCES, "limits": {**_RESOURCES["limits"], "memory": "64Gi"}},
        "tensorParallelSize": 2,
        "sharedMemory": "2Gi",
        "modelCache": {"sizeLimit": "9Gi"},
        "startupTimeoutSeconds": 900,
        "hostMemory": {"capacity": "1Gi", "disk": {"capacity": "4Gi", "path": "/kv"}},
        "batchLimit": "Static",
        **_PLACE,
        "runtimeClassName": "nvidia",
        "schedulerName": "other",
        "serviceAccountName": "engine",
        "tls": {"secretName": "chat-engine-tls", "clientSecretName": "chat-client-tls"},
        "imagePullSecrets": [{"name": "pull"}],
    },
    "replicas": 2,
    "router": {
        "shadowPolicy": "PrefixAware",
        "replicas": 2,
        "policy": "Lbgr",
        "lbgr": {"consideredReplicas": 32},
        "auth": {"apiKeysRef": _SECRET, "adminKeyRef": {"name": "admin", "key": "key"}},
        "tls": {"secretName": "chat-tls"},
        "service": {"type": "NodePort", "port": 9000, "annotations": {"a": "b"}},
        "ingress": {
            "host": "chat.example",
            "className": "nginx",
            "tlsSecretRef": {"name": "tls"},
            "annotations": {"a": "b"},
        },
        "httpRoute": {
            "parentRefs": [{"name": "front", "namespace": "gateways", "sectionName": "http"}],
            "hostnames": ["chat.example"],
        },
        "resources": _RESOURCES,
        **_PLACE,
    },
    "quotas": [
        {
            "tenant": "alice",
            "requestsPerMinute": 60,
            "tokensPerMinute": 90_000,
            "tokensPerDay": 5_000_000,
            "concurrentRequests": 8,
            "models": ["tiny-chat"],
        }
    ],
    "flowControl": {
        "maxRequests": 50,
        "maxSeconds": 9,
        "engineQueueMilliseconds": 250,
        "order": "SloScore",
        "classes": [{"name": "chat", "weight": 3, "ttftMilliseconds": 2000, "tenants": ["alice"]}, {"name": "batch"}],
    },
    "directory": {"managed": {"maxMemory": "64Mi", "resources": _RESOURCES, **_PLACE}, "warmup": {"enabled": True}},
    "rollout": {"maxSurge": 1, "maxUnavailable": 1},
    "networkPolicy": {"enabled": True, "clientNamespaces": ["one"], "monitoringNamespaces": ["two"]},
    "monitoring": {"enabled": True, "labels": {"release": "a"}},
    "tracing": {"endpoint": "http://one:4318"},
}
SIMULATOR: Final[dict[str, Any]] = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {
        "runtime": "Simulator",
        "feather": {"policy": "Bandit"},
        "eviction": {"policy": "Hotness", "hotness": {"form": "Paper"}},
        "hostMemory": {"capacity": "1Gi"},
        "simulator": {"device": {}, "hostBlocks": 50},
    },
}
_BEHAVIOR: Final = {
    "scaleUp": {"stabilizationWindowSeconds": 30, "policies": [{"type": "Pods", "value": 6, "periodSeconds": 60}]},
    "scaleDown": {"stabilizationWindowSeconds": 60, "policies": [{"type": "Pods", "value": 6, "periodSeconds": 60}]},
}
_AUTOSCALING: Final = {
    "minReplicas": 0,
    "maxReplicas": 40,
    "metrics": [
        {"type": "RequestsInFlight", "target": 4},
        {"type": "KvCacheUsage", "targetPercent": 80},
        {"type": "TimeToFirstToken", "targetMilliseconds": 500},
    ],
    "behavior": _BEHAVIOR,
    "idleSeconds": 120,
}


def put(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the value at a path such as `engine.env[1].name`."""
    changed = deepcopy(spec)
    *way, last = _steps(path)
    part: Any = changed
    for step in way:
        part = part[step] if isinstance(step, int) else part.setdefault(step, {})
    part[last] = value
    return changed


def _steps(path: str) -> Iterator[str | int]:
    for name in path.split("."):
        name, *places = name.replace("]", "").split("[")
        yield name
        yield from map(int, places)


def _with(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    for path, value in changes.items():
        spec = put(spec, path.replace("__", "."), value)
    return spec


POOLS: Final[Mapping[str, dict[str, Any]]] = {
    "VLLM": VLLM,
    "VLLM, claims": _with(
        VLLM, engine__modelCache={"claimName": "models"}, engine__hostMemory__disk__claimName="kv",
    ),
    "Simulator": SIMULATOR,
    "external engines": {
        "model": {"uri": "builtin://tiny-llama"}, "engine": {"external": {"inferencePoolRef": {"name": "theirs"}}},
    },
    "plain": {"model": {"uri": "builtin://tiny-llama"}, "engine": {"runtime": "Simulator"}},
    "sliding window": _with(SIMULATOR, engine__feather__bandit={"forgetting": "SlidingWindow"}),
    "Q-learning": _with(SIMULATOR, engine__feather__policy="QLearning"),
    "the paper's bandit": _with(SIMULATOR, engine__feather__bandit={"form": "Paper"}),
    "the paper's Q-learning": _with(
        SIMULATOR, engine__feather__policy="QLearning", engine__feather__qLearning={"form": "Paper"},
    ),
    "heuristic": _with(SIMULATOR, engine__feather__policy="Heuristic"),
    "the paper's routing": _with(SIMULATOR, router={"policy": "LbgrPaper"}),
    "behind a gateway": _with(SIMULATOR, router={"gatewayRef": {"name": "front"}}),
    "a Redis": _with(
        SIMULATOR,
        directory={
            "redisRef": {
                "url": "rediss://host:6379",
                "username": "user",
                "passwordRef": _SECRET,
                "caRef": {"name": "ca", "key": "crt"},
            }
        },
    ),
    "autoscaled": _with(SIMULATOR, autoscaling=_AUTOSCALING),
}  # fmt: skip
"""A pool's spec by name. Each field is in one of them, together with the fields that give it an effect."""

GATEWAY: Final[dict[str, Any]] = {
    "tracing": {"endpoint": "http://one:4318"},
    "replicas": 2,
    "listeners": [{"name": "http", "port": 8000}, {"name": "other", "port": 8080}],
    "models": [
        {
            "name": "chat",
            "aliases": ["gpt"],
            "pools": [{"poolRef": {"name": "chat"}, "weight": 1}],
            "fallback": "code",
            "requestMirror": {"poolRef": {"name": "code"}, "percent": 50},
        },
        {
            "name": "code",
            "pools": [{"poolRef": {"name": "code"}, "weight": 1}, {"poolRef": {"name": "chat"}, "weight": 0}],
        },
    ],
    "auth": {"apiKeysRef": _SECRET, "adminKeyRef": {"name": "admin", "key": "key"}},
    "tls": {"secretName": "front-tls"},
    "service": {"type": "NodePort", "annotations": {"a": "b"}},
    "flowControl": {"maxInFlight": 500},
    "resources": _RESOURCES,
    **_PLACE,
}
