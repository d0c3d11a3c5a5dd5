"""Combinations of fields that are invalid: every `Rule` with its exact message, and every `Change`."""

from __future__ import annotations

from typing import Any

from support.manifest_mistakes import Mutation, gateway, pool, put

__all__ = ["CHANGES", "GATEWAY_RULES", "RULES"]

_KEYS = {"auth": {"apiKeysRef": {"name": "keys", "key": "keys"}}}


def _quotas(*quotas: dict[str, Any], router: dict[str, Any] = _KEYS) -> Mutation:
    def mutate(document: dict[str, Any]) -> None:
        document["spec"] |= {"quotas": list(quotas), "router": router}

    return mutate


def _external(**more: Any) -> Mutation:
    """A pool with external engines and these further fields of its spec."""

    def mutate(document: dict[str, Any]) -> None:
        engine = {"external": {"inferencePoolRef": {"name": "theirs"}}}
        document["spec"] = {"model": {"uri": "hf://org/model"}, "engine": engine, **more}

    return mutate


RULES: list[tuple[Mutation, str]] = [
    (
        _quotas({"tenant": "alice", "tokensPerDay": 5}, router={}),
        "spec.quotas: must be absent without tenants: set router.auth.apiKeysRef, or router.gatewayRef of a gateway "
        "with keys, got 1 entry",
    ),
    (
        _quotas({"tenant": "alice", "tokensPerDay": 5}, {"tenant": "alice", "concurrentRequests": 1}),
        "spec.quotas: may not name a tenant twice, got 2 entries",
    ),
    (
        put("spec.flowControl", {"classes": [{"name": "chat", "tenants": ["alice"]}]}),
        "spec.flowControl: may not name tenants without keys: set router.auth.apiKeysRef, or router.gatewayRef of a "
        "gateway with keys, got 1 entry",
    ),
    (
        put("spec.flowControl", {"classes": [{"name": "chat"}, {"name": "chat", "weight": 2}]}),
        "spec.flowControl.classes: may not name a class twice, got 2 entries",
    ),
    (
        _quotas({"tenant": "alice"}),
        "spec.quotas[0].tenant: must have at least one limit, or models, beside it, got 'alice'",
    ),
    (
        put("spec.model.aliases", ["Qwen3-8B"]),
        "spec.model: must give the model, its aliases and its adapters different names, got 2 entries",
    ),
    (
        put("spec.engine.feather.heuristic", {"lossThreshold": 9}),
        "spec.engine.feather.heuristic.relaxedLossThreshold: must be at least lossThreshold, got nothing",
    ),
    (
        put("spec.engine.env", [{"name": "A"}, {"name": "A"}]),
        "spec.engine.env: may not name a variable twice, got 2 entries",
    ),
    *(
        (
            put("spec.engine.env", [{"name": name, "value": "{}"}]),
            "spec.engine.env[0].name: may not be set: Plumage sets it itself, from feather, eviction, hostMemory, "
            f"batchLimit and keysRef, got {name!r}",
        )
        for name in ("PLUMAGE_VLLM", "POD_NAME", "VLLM_API_KEY")
    ),
    *(
        (
            put("spec.engine.env", [{"name": "VLLM_PLUGINS", **fields}]),
            "spec.engine.env: may not set VLLM_PLUGINS without plumage in its value: vLLM loads only the plugins "
            "named there, got 1 entry",
        )
        for fields in ({}, {"value": "other, plumages"}, {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})
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
        put("spec.engine.hostMemory", {"minFrequency": 4}),
        "spec.engine.hostMemory.capacity: must be set with runtime VLLM: without it vLLM has no host tier, got nothing",
    ),
    (
        put("spec.engine.hostMemory", {"capacity": "8Gi", "minFrequency": 64, "filter": {"frequencyBits": 6}}),
        "spec.engine.hostMemory.minFrequency: must be at most the largest count of filter.frequencyBits, "
        "got 64",
    ),
    (
        put("spec.engine.eviction.hotness.filter", {"clockBits": 16}),
        "spec.engine.eviction.hotness.filter: may not be changed with form Adaptive, which has no filter, "
        "got 1 entry",
    ),
    (
        put("spec.engine.eviction.hotness.agingInterval", 7),
        "spec.engine.eviction.hotness.agingInterval: may not be changed with form Adaptive, which has no clocks, "
        "got 7",
    ),
    (
        put("spec.engine.eviction.hotness", {"form": "Adaptive", "priority": "clock"}),
        "spec.engine.eviction.hotness.priority: may not be changed with form Adaptive, which has no formula, "
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
        "spec.engine.simulator.maxBatchedTokens: must be above maxNumSeqs: each running request takes one token of "
        "a step, and prompts use the others, got 32",
    ),
    (put("spec", {**pool()["spec"], "replicas": 2, "autoscaling": {"maxReplicas": 3}}),
     "spec.replicas: must be absent, or 1, when autoscaling is set: autoscaling chooses the number, got 2"),
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
        "spec.autoscaling.metrics[0].target: must be set for TotalTokensPerSecond, OutputTokensPerSecond and "
        "RequestsInFlight, and absent for other types, got 3",
    ),
    (
        put("spec.autoscaling", {"maxReplicas": 2, "metrics": [{"type": "TotalTokensPerSecond", "target": 1}] * 2}),
        "spec.autoscaling.metrics: may not name a type twice, got 2 entries",
    ),
    (
        put("spec.router", {"gatewayRef": {"name": "front"}, "policy": "Lbgr"}),
        "spec.router.gatewayRef: may not be set together with other fields of router: exactly one of an own router and "
        "a gateway, got 1 entry",
    ),
    (
        put("spec.router", {"endpointPicker": {"port": 8000}}),
        "spec.router.endpointPicker.port: must be another one than service.port, got 8000",
    ),
    (
        put("spec.router.endpointPicker", {"proxyNamespaces": ["edge", "edge"]}),
        "spec.router.endpointPicker.proxyNamespaces: may not name a namespace twice, got 2 entries",
    ),
    (
        put("spec.engine", {"runtime": "Simulator", "external": {"inferencePoolRef": {"name": "theirs"}}}),
        "spec.engine.external: may not be set with runtime Simulator: Plumage makes no engine then, got 1 entry",
    ),
    (
        put("spec.engine", {"tls": {"secretName": "cert"}, "external": {"inferencePoolRef": {"name": "theirs"}}}),
        "spec.engine.external: may not be set together with tls: routers know no certificate of these engines, "
        "got 1 entry",
    ),
    (
        _external(autoscaling={"maxReplicas": 2}),
        "spec.autoscaling: may not be set with engine.external: the owner of the engines chooses how many, "
        "got 1 entry",
    ),
    (
        _external(replicas=2),
        "spec.replicas: must be absent, or 1, with engine.external: the owner of the engines chooses how many, "
        "got 2",
    ),
    (
        _external(model={"uri": "hf://org/model", "adapters": [{"name": "law", "uri": "hf://org/law"}]}),
        "spec.model.adapters: must be absent with engine.external: no agent loads them or reports who has them, "
        "got 1 entry",
    ),
    (
        _external(router={"endpointPicker": {"inferencePool": {}}}),
        "spec.router.endpointPicker.inferencePool: may not be set with engine.external: name this picker in the "
        "InferencePool of the engines, got 0 entries",
    ),
    (
        put("spec.router.limits", {"bodyMemory": "63Mi"}),
        "spec.router.limits.bodyMemory: must be at least 4 times maxBodyBytes, got '63Mi'",
    ),
    (
        put("spec.directory", {"managed": {}, "redisRef": {"url": "redis://host:6379"}}),
        "spec.directory.redisRef: may not be set together with managed: exactly one directory, got 1 entry",
    ),
    (
        put("spec.directory.managed", {"resources": {"limits": {"memory": "256Mi"}}}),
        "spec.directory.managed.maxMemory: must be below resources.limits.memory: buffers of clients need memory too, "
        "got nothing",
    ),
    (
        put("spec.rollout", {"maxSurge": 0, "maxUnavailable": "0%"}),
        "spec.rollout.maxSurge: may not be 0 when maxUnavailable is 0: no replica could be replaced, got 0",
    ),
    (
        put("spec", {"model": {"uri": "builtin://nope"}, "engine": {"runtime": "Simulator"}}),
        "spec.model.uri: must name a built-in model after builtin://: tiny-chat, tiny-llama, got 'builtin://nope'",
    ),
    (
        put("spec.model.tokenizer", "builtin://nope"),
        "spec.model.tokenizer: must name a built-in model after builtin://: tiny-chat, tiny-llama, got 'builtin://nope'",
    ),
    (
        put("spec.model.adapters", [{"name": "law", "uri": "builtin://law"}]),
        "spec.model.adapters[0].uri: may not be builtin://: no adapter is built in, got 'builtin://law'",
    ),
    (
        put("spec.model.adapters", [{"name": "law", "uri": "s3://bucket/law"}]),
        "spec.model.adapters[0].uri: may not be s3://: vLLM loads no adapter from there; use hf://, "
        "file://, pvc:// or oci://, got 's3://bucket/law'",
    ),
    (
        put("spec.model.uri", "builtin://tiny-chat"),
        "spec.model.uri: may not be builtin:// with engine.runtime VLLM, except builtin://tiny-llama: other models "
        "have no weights, got 'builtin://tiny-chat'",
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
        "spec.directory.redisRef.caRef: may not be set without rediss:// in url: other URLs have no TLS, got 2 entries",
    ),
    *(
        (
            put("spec.engine.args", ["--seed=1", wrong, "--max-model-len=4096"]),
            f"spec.engine.args[1]: may not be set: Plumage sets it itself, got {wrong!r}",
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

CHANGES: list[tuple[dict[str, Any], str]] = [
    (
        {"spec": {"model": {"uri": "hf://Qwen/Qwen3-32B"}}},
        "spec.model: may not change the name that clients ask for (name, or the last part of uri): engines of both "
        "names would be behind one router; set name to the old one, or make a new pool, got 1 entry",
    ),
]
"""Changes of a pool that only a server can refuse, each as a merge patch of the base object."""

GATEWAY_RULES: list[tuple[Mutation, str]] = [
    (
        put("spec.resources", {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
        "spec.resources.requests: may not be above limits, got 1 entry",
    ),
    (
        put("spec.listeners", [{"name": "a", "port": 80}, {"name": "b", "port": 80}]),
        "spec.listeners: may not repeat a name or a port, got 2 entries",
    ),
    (
        put("spec.models", [{"name": "chat", "pools": [{"poolRef": {"name": "a"}, "weight": 0}]}]),
        "spec.models[0].pools: must have a pool with a weight above 0, got 1 entry",
    ),
    (
        put("spec.models", [{"name": "chat", "pools": [{"poolRef": {"name": "a"}}] * 2}]),
        "spec.models[0].pools: may not name a pool twice, got 2 entries",
    ),
    (put("spec.models", gateway()["spec"]["models"] * 2),
     "spec.models: may not give one name to two models, got 2 entries"),
    (
        put(
            "spec.models",
            [{"name": "chat", "pools": [{"poolRef": {"name": "a"}}], "requestMirror": {"poolRef": {"name": "a"}}}],
        ),
        "spec.models[0].requestMirror: may not name a pool of this model with a weight above 0: clients get that "
        "pool's answers, got 1 entry",
    ),
    *(
        (
            put("spec.models", [{"name": "chat", "pools": [{"poolRef": {"name": "a"}}], "fallback": fallback}]),
            "spec.models: may only fall back to the name of another model of this gateway, got 1 entry",
        )
        for fallback in ("chat", "gone")
    ),
    (
        put("metadata.name", "a.b"),
        "metadata.name: must be a name of at most 53 characters: lowercase letters, digits and '-', beginning with a "
        "letter, ending with a letter or digit, since Services are named after it, got 'a.b'",
    ),
]  # fmt: skip
