"""Invalid fields of manifests, each with its exact message. The local check and an API server must both refuse them,
with the same words where the definition has them. `manifest_rules` has the rules between fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["FIELD_MISTAKES", "GATEWAY_FIELD_MISTAKES", "SPREAD", "Mutation", "drop", "gateway", "pool", "put"]

Mutation = Callable[[dict[str, Any]], None]


def pool() -> dict[str, Any]:
    return {
        "apiVersion": "inference.plumage.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"uri": "hf://Qwen/Qwen3-8B"},
            "engine": {
                "feather": {"bandit": {}, "heuristic": {}, "qLearning": {}},
                "eviction": {"hotness": {"filter": {}}},
            },
            "router": {},
            "directory": {"warmup": {}},
            "rollout": {},
        },
    }


def gateway() -> dict[str, Any]:
    return {
        "apiVersion": "inference.plumage.dev/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": "front"},
        "spec": {"models": [{"name": "chat", "pools": [{"poolRef": {"name": "chat"}}]}]},
    }


def put(path: str, value: Any) -> Mutation:
    """Sets the field at a dotted path."""

    def mutate(document: dict[str, Any]) -> None:
        *way, last = path.split(".")
        for key in way:
            document = document.setdefault(key, {})
        document[last] = value

    return mutate


def drop(path: str) -> Mutation:
    def mutate(document: dict[str, Any]) -> None:
        *way, last = path.split(".")
        for key in way:
            document = document[key]
        del document[last]

    return mutate


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}

FIELD_MISTAKES: list[tuple[Mutation, str]] = [
    (drop("spec.model.uri"), "spec.model.uri: must be set, got nothing"),
    (drop("metadata.name"), "metadata.name: must be set, got nothing"),
    (
        put("metadata.name", "Chat"),
        "metadata.name: must be lowercase letters, digits, '-' and '.', beginning and ending with a letter or digit, "
        "got 'Chat'",
    ),
    (put("metadata.name", ""), "metadata.name: must have at least 1 character, got ''"),
    (put("spec.model", "qwen"), "spec.model: must be a mapping, got 'qwen'"),
    *(
        (
            put("spec.model.uri", wrong),
            "spec.model.uri: must be a URI of a known scheme: hf://Qwen/Qwen3-8B, file:///models/qwen, "
            f"pvc://claim/path, oci://registry/image:tag, s3://bucket/path or builtin://tiny-chat, got '{wrong}'",
        )
        for wrong in ("qwen", "ftp://x/y", "HF://Qwen/Qwen3-8B", "hf://", "hf:///Qwen", "file://models/qwen", "s3:// x")
    ),
    (
        put("spec.model.tokenizer", "https://x/y"),
        "spec.model.tokenizer: must be a URI of a known scheme: hf://Qwen/Qwen3-8B, file:///models/qwen, "
        "pvc://claim/path, oci://registry/image:tag, s3://bucket/path or builtin://tiny-chat, got 'https://x/y'",
    ),
    (
        put("spec.quotas", [{"tenant": "a b", "tokensPerDay": 1}]),
        "spec.quotas[0].tenant: must be a tenant of the keys file, in printable ASCII characters without spaces, or "
        "'*', got 'a b'",
    ),
    (
        put("spec.quotas", [{"tenant": "alice", "tokensPerDay": 0}]),
        "spec.quotas[0].tokensPerDay: must be at least 1, got 0",
    ),
    (
        put("spec.quotas", [{"tenant": "alice", "models": []}]),
        "spec.quotas[0].models: must have at least 1 entry, got 0 entries",
    ),
    (
        put("spec.flowControl", {"classes": [{"name": "Chat"}]}),
        "spec.flowControl.classes[0].name: must be lowercase letters, digits and '-', beginning and ending with a "
        "letter or digit, got 'Chat'",
    ),
    (
        put("spec.flowControl", {"classes": []}),
        "spec.flowControl.classes: must have at least 1 entry, got 0 entries",
    ),
    (put("spec.model.aliases", "qwen"), "spec.model.aliases: must be a list, got 'qwen'"),
    (
        put("spec.model.aliases", [f"a{n}" for n in range(17)]),
        "spec.model.aliases: must have at most 16 entries, got 17 entries",
    ),
    (put("spec.autoscaling", {"maxReplicas": 2, "metrics": []}),
     "spec.autoscaling.metrics: must have at least 1 entry, got 0 entries"),
    (put("spec.replicas", "4"), "spec.replicas: must be an integer, got '4'"),
    (put("spec.replicas", 4.0), "spec.replicas: must be an integer, got 4.0"),
    (put("spec.replicas", True), "spec.replicas: must be an integer, got true"),
    (put("spec.replicas", -1), "spec.replicas: must be at least 0, got -1"),
    (put("spec.replicas", 1001), "spec.replicas: must be at most 1,000, got 1001"),
    (
        put("spec.engine.runtime", "vllm"),
        "spec.engine.runtime: must be VLLM or Simulator, got 'vllm'; did you mean VLLM?",
    ),
    (
        put("apiVersion", "inference.networking.k8s.io/v1"),
        "apiVersion: must be inference.plumage.dev/v1alpha1, got 'inference.networking.k8s.io/v1': that InferencePool "
        "belongs to the Gateway API Inference Extension and has other fields; Plumage's are in "
        "docs/reference/manifest.md",
    ),
    (
        put("spec.engine.feather.policy", "bandit"),
        "spec.engine.feather.policy: must be Bandit, QLearning, Heuristic, Predictive, ChtOrder or Fcfs, got 'bandit'; "
        "did you mean Bandit?",
    ),
    (
        put("spec.engine.feather.maxWaitSeconds", 0),
        "spec.engine.feather.maxWaitSeconds: must be at least 1, got 0",
    ),
    (
        put("spec.engine.feather.bandit.exploration", 0.5),
        "spec.engine.feather.bandit.exploration: must be a quantity without a float: put it in quotes, as \"0.5\", "
        "got 0.5",
    ),
    (
        put("spec.engine.feather.bandit.form", "paper"),
        "spec.engine.feather.bandit.form: must be Adaptive or Paper, got 'paper'; did you mean Paper?",
    ),
    (
        put("spec.engine.feather.qLearning.form", "Step"),
        "spec.engine.feather.qLearning.form: must be Adaptive or Paper, got 'Step'",
    ),
    (
        put("spec.engine.feather.bandit.discount", "1.5"),
        "spec.engine.feather.bandit.discount: must be a quantity from 0 to 1, got '1.5'",
    ),
    (
        put("spec.engine.hostMemory", {"capacity": "16 GB"}),
        "spec.engine.hostMemory.capacity: must be a quantity: an integer or a string such as 16Gi, 500m or 0.5, "
        "got '16 GB'",
    ),
    (
        put("spec.engine.eviction.hotness.priority", "__import__('os')"),
        "spec.engine.eviction.hotness.priority: must be terms (frequency, clock, length, depth, numbers) with + - * / "
        "between them, one space around each, got \"__import__('os')\"",
    ),
    (
        put("spec.rollout.maxSurge", "150%"),
        "spec.rollout.maxSurge: must be an integer from 0 to 1000, or a percentage from 0% to 100%, got '150%'",
    ),
    (
        put("spec.tracing", {"endpoint": "collector:4318"}),
        "spec.tracing.endpoint: must be http:// or https://, a host, and if needed a port and a path, without a "
        "password, got 'collector:4318'",
    ),
    (
        put("spec.tracing", {"endpoint": "https://user:secret@collector"}),
        "spec.tracing.endpoint: must be http:// or https://, a host, and if needed a port and a path, without a "
        "password, got 'https://<hidden>@collector'",
    ),
    (
        put("spec.directory.redisRef", {"url": "redis://user:secret@host"}),
        "spec.directory.redisRef.url: must be unix://, redis://, rediss://, redis+cluster:// or redis+sentinel:// and "
        "an address, without a password, got 'redis://<hidden>@host'",
    ),
    (put("spec.engin", {}), "spec.engin: may not be set: there is no such field; did you mean engine?"),
    (
        put("spec.engine.feather.polcy", "Fcfs"),
        "spec.engine.feather.polcy: may not be set: there is no such field; did you mean policy?",
    ),
    (
        put("spec.directory.warmup.zzz", 1),
        "spec.directory.warmup.zzz: may not be set: there is no such field; there are: enabled, maxTokens, "
        "timeoutSeconds",
    ),
    (put("kind", "Pod"), "kind: must be InferencePool or InferenceGateway, got 'Pod'"),
    (
        put("apiVersion", "v1"),
        "apiVersion: must be inference.plumage.dev/v1alpha1, got 'v1'",
    ),
    (
        put("spec.engine.env", [{"name": "A-B", "value": "1"}]),
        "spec.engine.env[0].name: must be letters, digits and '_', not beginning with a digit, got 'A-B'",
    ),
    (
        put("spec.engine.nodeSelector", {"k" * 318: "v"}),
        f"spec.engine.nodeSelector: must have keys of at most 317 characters, got '{'k' * 78}…",
    ),
    (
        put("spec.engine.priorityClassName", "High"),
        "spec.engine.priorityClassName: must be lowercase letters, digits, '-' and '.', beginning and ending with a "
        "letter or digit, got 'High'",
    ),
    (
        put("spec.engine.schedulerName", "a.b"),
        "spec.engine.schedulerName: must be lowercase letters, digits and '-', beginning and ending with a letter or "
        "digit, got 'a.b'",
    ),
    (
        put("spec.model.name", "-qwen"),
        "spec.model.name: must be letters, digits, '.', '_', '/', ':' and '-', beginning with a letter or digit, "
        "got '-qwen'",
    ),
    (
        put("spec.model.tokenRef", {"name": "hub", "key": "a key"}),
        "spec.model.tokenRef.key: must be letters, digits, '-', '_' and '.', got 'a key'",
    ),
    (
        put("spec.engine.hostMemory", {"capacity": "8Gi", "disk": {"capacity": "1Gi", "path": "var/kv"}}),
        "spec.engine.hostMemory.disk.path: must be an absolute path, got 'var/kv'",
    ),
    (
        put("spec.directory.redisRef", {"url": "redis://h:1", "username": "a b"}),
        "spec.directory.redisRef.username: must be letters, digits, '_', '.' and '-', got 'a b'",
    ),
    (
        put("spec.engine.resources", {"limits": {"nvidia.com/gpu": "-1"}}),
        "spec.engine.resources.limits[nvidia.com/gpu]: must be a quantity from 0 to 1E, got '-1'",
    ),
    (
        put("spec.engine.sharedMemory", "1Ki"),
        "spec.engine.sharedMemory: must be a quantity from 1Mi to 64Ti, got '1Ki'",
    ),
    (
        put("spec.engine.feather.bandit.exploration", 0),
        "spec.engine.feather.bandit.exploration: must be a quantity from 0.000001 to 1000000000, got 0",
    ),
    (
        put("spec.router.lbgr", {"forgetting": "0.4"}),
        "spec.router.lbgr.forgetting: must be a quantity from 0.5 to 1, got '0.4'",
    ),
    (
        put("spec.directory.managed", {"maxMemory": "8Mi"}),
        "spec.directory.managed.maxMemory: must be a quantity from 16Mi to 64Ti, got '8Mi'",
    ),
    (
        put("spec.engine.affinity", {"nodeAfinity": {}}),
        "spec.engine.affinity.nodeAfinity: may not be set: there is no such field; did you mean nodeAffinity?",
    ),
    (
        put("spec.engine.affinity", {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        "spec.engine.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: must be set, "
        "got nothing",
    ),
    (
        put("spec.engine.affinity", "zone"),
        "spec.engine.affinity: must be a mapping, got 'zone'",
    ),
    (
        put("spec.engine.topologySpreadConstraints", [{**SPREAD, "maxSkw": 1}]),
        "spec.engine.topologySpreadConstraints[0].maxSkw: may not be set: there is no such field; did you mean "
        "maxSkew?",
    ),
    (
        put("spec.engine.topologySpreadConstraints", [{**SPREAD, "whenUnsatisfiable": "DoNotSchedul"}]),
        "spec.engine.topologySpreadConstraints[0].whenUnsatisfiable: must be DoNotSchedule or ScheduleAnyway, "
        "got 'DoNotSchedul'; did you mean DoNotSchedule?",
    ),
    (
        put("spec.engine.topologySpreadConstraints", [{**SPREAD, "matchLabelKeys": "pod-template-hash"}]),
        "spec.engine.topologySpreadConstraints[0].matchLabelKeys: must be a list, got 'pod-template-hash'",
    ),
]  # fmt: skip

GATEWAY_FIELD_MISTAKES: list[tuple[Mutation, str]] = [
    (
        put("spec.tracing", {"endpoint": "collector:4318"}),
        "spec.tracing.endpoint: must be http:// or https://, a host, and if needed a port and a path, without a "
        "password, got 'collector:4318'",
    ),
    (
        put("spec.allowedRequestFields", ["9x"]),
        "spec.allowedRequestFields[0]: must be letters, digits and '_', not beginning with a digit, got '9x'",
    ),
    (
        put("spec.resources", {"limits": {"memory": "-1"}}),
        "spec.resources.limits[memory]: must be a quantity from 0 to 1E, got '-1'",
    ),
    (
        put("spec.listeners", [{"name": "Front", "port": 80}]),
        "spec.listeners[0].name: must be lowercase letters, digits and '-', beginning and ending with a letter or "
        "digit, got 'Front'",
    ),
    (
        put("spec.models", [{"name": "chat", "pools": [{"poolRef": {"name": "Chat"}}]}]),
        "spec.models[0].pools[0].poolRef.name: must be lowercase letters, digits, '-' and '.', beginning and ending "
        "with a letter or digit, got 'Chat'",
    ),
    (
        put("spec.models", [{"name": "a b", "pools": [{"poolRef": {"name": "chat"}}]}]),
        "spec.models[0].name: must be letters, digits, '.', '_', '/', ':' and '-', beginning with a letter or digit, "
        "got 'a b'",
    ),
    (
        put("spec.auth", {"apiKeysRef": {"name": "keys", "key": "a/b"}}),
        "spec.auth.apiKeysRef.key: must be letters, digits, '-', '_' and '.', got 'a/b'",
    ),
    (
        put("spec.service", {"annotations": {"k" * 318: "v"}}),
        f"spec.service.annotations: must have keys of at most 317 characters, got '{'k' * 78}…",
    ),
]
