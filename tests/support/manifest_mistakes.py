"""Every rule of the manifests, each with its exact message; on paper and on an API server the verdicts must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["FIELD_MISTAKES", "GATEWAY_RULES", "RULES", "Mutation", "drop", "gateway", "pool", "put"]

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
    """Set the field at a dotted path, as a person would write it."""

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
    (put("spec.engine.runtime", "vllm"), "spec.engine.runtime: must be VLLM or Simulator, got 'vllm'"),
    (
        put("spec.engine.feather.policy", "bandit"),
        "spec.engine.feather.policy: must be Bandit, QLearning, Heuristic, ChtOrder or Fcfs, got 'bandit'",
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
        "timeoutSeconds, salted",
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
]  # fmt: skip

RULES: list[tuple[Mutation, str]] = [
    (
        put("spec.model.aliases", ["Qwen3-8B"]),
        "spec.model: may not give one name to two of: the model, its aliases, its adapters, got 2 entries",
    ),
    (
        put("spec.engine.feather.heuristic", {"lossThreshold": 9}),
        "spec.engine.feather.heuristic.relaxedLossThreshold: must be at least lossThreshold, got nothing",
    ),
    (
        put("spec.engine.env", [{"name": "A"}, {"name": "A"}]),
        "spec.engine.env: may not name a variable twice, got 2 entries",
    ),
    (
        put("spec.engine.env", [{"name": "A", "valueFrom": {}}]),
        "spec.engine.env[0].valueFrom: must set exactly one of secretKeyRef and configMapKeyRef, got 0 entries",
    ),
    (
        put(
            "spec.engine.env",
            [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        ),
        "spec.engine.env[0].valueFrom: may not be set together with value, got 1 entry",
    ),
    (
        put("spec.engine.resources", {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
        "spec.engine.resources.requests: may not be above limits, got 1 entry",
    ),
    (
        put("spec.engine", {"hostMemory": {"capacity": "8Gi"}, "resources": {"limits": {"memory": "8Gi"}}}),
        "spec.engine.hostMemory.capacity: must be below resources.limits.memory, got '8Gi'",
    ),
    (
        put("spec.engine.hostMemory", {"minFrequency": 64, "filter": {"frequencyBits": 6}}),
        "spec.engine.hostMemory.minFrequency: must be at most the highest count that filter.frequencyBits has room "
        "for, got 64",
    ),
    (
        put("spec.engine.eviction.hotness.filter", {"clockBits": 16}),
        "spec.engine.eviction.hotness.filter: may not be changed where form is Adaptive, which has no filter, "
        "got 1 entry",
    ),
    (
        put("spec.engine.eviction.hotness.agingInterval", 7),
        "spec.engine.eviction.hotness.agingInterval: may not be changed where form is Adaptive, which has no clocks, "
        "got 7",
    ),
    (
        put("spec.engine.eviction.hotness", {"form": "Adaptive", "priority": "clock"}),
        "spec.engine.eviction.hotness.priority: may not be changed where form is Adaptive, which has no formula, "
        "got 'clock'",
    ),
    (
        put("spec.engine.simulator", {"seed": 1}),
        "spec.engine.simulator: may not be set with runtime VLLM, got 1 entry",
    ),
    (
        put("spec.engine", {"runtime": "Simulator", "args": ["--seed=1"]}),
        "spec.engine.args: may not be set with runtime Simulator: its settings are under simulator, got 1 entry",
    ),
    (
        put("spec.engine", {"runtime": "Simulator", "simulator": {"maxNumSeqs": 64, "maxBatchedTokens": 32}}),
        "spec.engine.simulator.maxBatchedTokens: must be above maxNumSeqs: each running request takes a token of "
        "a step, prompts need what is left, got 32",
    ),
    (put("spec", {**pool()["spec"], "replicas": 2, "autoscaling": {"maxReplicas": 3}}),
     "spec.replicas: must be absent when autoscaling is set, got 2"),
    (
        put("spec.autoscaling", {"minReplicas": 5, "maxReplicas": 2}),
        "spec.autoscaling.minReplicas: may not be above maxReplicas, got 5",
    ),
    (
        put("spec.autoscaling", {"maxReplicas": 2, "metrics": [{"type": "CacheHitRatio"}]}),
        "spec.autoscaling.metrics[0].targetPercent: must be set for CacheHitRatio and KvCacheUsage, and absent for "
        "other types, got nothing",
    ),
    (
        put("spec.autoscaling", {"maxReplicas": 2, "metrics": [{"type": "QueueWait"}]}),
        "spec.autoscaling.metrics[0].targetMilliseconds: must be set for TimeToFirstToken and QueueWait, and absent "
        "for other types, got nothing",
    ),
    (
        put("spec.autoscaling",
            {"maxReplicas": 2, "metrics": [{"type": "KvCacheUsage", "targetPercent": 80, "target": 3}]}),
        "spec.autoscaling.metrics[0].target: must be set for TokensPerSecond and RequestsInFlight, and absent for "
        "other types, got 3",
    ),
    (
        put("spec.autoscaling", {"maxReplicas": 2, "metrics": [{"type": "TokensPerSecond", "target": 1}] * 2}),
        "spec.autoscaling.metrics: may not name a type twice, got 2 entries",
    ),
    (
        put("spec.router", {"gatewayRef": {"name": "front"}, "policy": "Lbgr"}),
        "spec.router.gatewayRef: may not be set together with other fields of router: exactly one of an own router and "
        "a gateway, got 1 entry",
    ),
    (
        put("spec.router.slo", {"ttftMilliseconds": 3000, "latencyMilliseconds": 2000}),
        "spec.router.slo.ttftMilliseconds: may not be above latencyMilliseconds, got 3000",
    ),
    (
        put("spec.directory", {"managed": {}, "redisRef": {"url": "redis://host:6379"}}),
        "spec.directory.redisRef: may not be set together with managed: exactly one directory, got 1 entry",
    ),
    (
        put("spec.rollout", {"maxSurge": 0, "maxUnavailable": "0%"}),
        "spec.rollout.maxSurge: may not be 0 when maxUnavailable is 0: nothing could ever be replaced, got 0",
    ),
    (
        put("spec", {"model": {"uri": "builtin://nope"}, "engine": {"runtime": "Simulator"}}),
        "spec.model.uri: must name a built-in model where it is builtin://: tiny-chat, tiny-llama, got 'builtin://nope'",
    ),
    (
        put("spec.model.tokenizer", "builtin://nope"),
        "spec.model.tokenizer: must name a built-in model where it is builtin://: tiny-chat, tiny-llama, got 'builtin://nope'",
    ),
    (
        put("spec.model.adapters", [{"name": "law", "uri": "builtin://law"}]),
        "spec.model.adapters[0].uri: may not be builtin://: no adapter is built in, got 'builtin://law'",
    ),
    (
        put("spec.model.uri", "builtin://tiny-chat"),
        "spec.model.uri: may not be a builtin:// model with engine.runtime VLLM, builtin://tiny-llama apart: it has no "
        "weights, got 'builtin://tiny-chat'",
    ),
]  # fmt: skip

RULES += [
    (
        put("metadata.name", "c" * 54),
        "metadata.name: must be a name of at most 53 characters: lowercase letters, digits and '-', beginning with a "
        f"letter, ending with a letter or digit, since Services are named after it, got '{'c' * 54}'",
    ),
    *(
        (
            put("metadata.name", wrong),
            "metadata.name: must be a name of at most 53 characters: lowercase letters, digits and '-', beginning with "
            f"a letter, ending with a letter or digit, since Services are named after it, got '{wrong}'",
        )
        for wrong in ("a.b", "4chat")
    ),
    (
        put("spec.directory.redisRef", {"url": "redis://host:6379", "username": "plumage"}),
        "spec.directory.redisRef.username: may not be set without passwordRef, got 'plumage'",
    ),
    (
        put("spec.directory.redisRef", {"url": "redis+sentinel://a:1,b:1/main", "caRef": {"name": "ca", "key": "crt"}}),
        "spec.directory.redisRef.caRef: may not be set where url is not rediss://: nothing is encrypted there, "
        "got 2 entries",
    ),
    *(
        (
            put("spec.engine.args", [wrong]),
            "spec.engine.args: may not set what Plumage sets itself (--additional-config, --api-key, --download-dir, "
            "--enable-force-include-usage, --enable-prompt-tokens-details, --host, --kv-events-config, "
            "--kv-transfer-config, --model, --port, --revision, --scheduler-cls, --served-model-name, "
            "--shutdown-timeout, --tensor-parallel-size, --uds, -tp), got 1 entry",
        )
        for wrong in ("--model=x", "--served_model_name", "-tp")
    ),
    (
        put("spec.engine", {"runtime": "Simulator", "tensorParallelSize": 2}),
        "spec.engine.tensorParallelSize: must be 1 with runtime Simulator: it has no GPU, got 2",
    ),
    (
        put("spec.engine", {"tensorParallelSize": 2, "resources": {"limits": {"nvidia.com/gpu": 1}}}),
        "spec.engine.tensorParallelSize: may not be above nvidia.com/gpu of resources.limits, got 2",
    ),
    (
        put("spec.engine.modelCache", {"claimName": "models", "sizeLimit": "1Gi"}),
        "spec.engine.modelCache.sizeLimit: may not be set together with claimName: a claim has its own size, got '1Gi'",
    ),
    (
        put("spec.engine.imagePullSecrets", [{"name": "a"}, {"name": "a"}]),
        "spec.engine.imagePullSecrets: may not name a Secret twice, got 2 entries",
    ),
    (
        put("spec.router.httpRoute", {"parentRefs": [{"name": "front"}], "hostnames": ["a.example", "a.example"]}),
        "spec.router.httpRoute.hostnames: may not name a host twice, got 2 entries",
    ),
    *(
        (
            put("spec.networkPolicy", {field: ["a", "a"]}),
            f"spec.networkPolicy.{field}: may not name a namespace twice, got 2 entries",
        )
        for field in ("clientNamespaces", "monitoringNamespaces")
    ),
]

GATEWAY_RULES: list[tuple[Mutation, str]] = [
    (
        put("spec.listeners", [{"name": "a", "port": 443, "protocol": "HTTPS"}]),
        "spec.listeners[0].certificateRef: must be set for HTTPS, and absent for HTTP, got nothing",
    ),
    (
        put("spec.listeners", [{"name": "a", "port": 80}, {"name": "b", "port": 80}]),
        "spec.listeners: may not repeat a name or a port, got 2 entries",
    ),
    (
        put("spec.models", [{"name": "chat", "pools": [{"poolRef": {"name": "a"}, "weight": 0}]}]),
        "spec.models[0].pools: must have a weight above 0 somewhere, got 1 entry",
    ),
    (
        put("spec.models", [{"name": "chat", "pools": [{"poolRef": {"name": "a"}}] * 2}]),
        "spec.models[0].pools: may not name a pool twice, got 2 entries",
    ),
    (put("spec.models", gateway()["spec"]["models"] * 2),
     "spec.models: may not give one name to two models, got 2 entries"),
    (put("spec.flowControl", {"priorities": [{"name": "a"}, {"name": "a"}]}),
     "spec.flowControl.priorities: may not name a level twice, got 2 entries"),
]  # fmt: skip
