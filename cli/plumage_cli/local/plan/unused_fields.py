"""Fields of a manifest that local mode refuses, or that have no effect in it. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic.alias_generators import to_camel

from plumage.api.v1alpha1 import InferencePool
from plumage.api.v1alpha1.scheduling import Placement
from plumage.errors import ManifestError
from plumage.settings.policies import ranks_by_hotness
from plumage.settings.simulator import STORE_VARIABLE

__all__ = ["WITHOUT_EFFECT", "of_unchosen_policies", "refuse_cluster_fields", "without_local_effect"]

# Python names; `without_local_effect` returns the manifest's names. A test changes every field of the manifest: a field
# that is not listed has an effect in local mode, or is refused.
WITHOUT_EFFECT = (
    "model.revision",
    "model.token_ref",
    "model.adapters.uri",
    "model.adapter_max_rank",
    "model.fetch_resources",
    "autoscaling",
    "engine.image",
    "engine.image_pull_policy",
    "engine.env",
    "engine.resources",
    "engine.agent_resources",
    "engine.shared_memory",
    "engine.model_cache",
    "engine.startup_timeout_seconds",
    "engine.host_memory.capacity",
    "engine.host_memory.disk.capacity",
    "engine.host_memory.disk.claim_name",
    "engine.host_memory.disk.path",
    *(f"engine.{name}" for name in Placement.model_fields),
    "engine.runtime_class_name",
    "engine.scheduler_name",
    "engine.service_account_name",
    "engine.image_pull_secrets",
    "router.replicas",
    "router.endpoint_picker.proxy_namespaces",
    "router.endpoint_picker.inference_pool",
    "router.service.type",
    "router.service.annotations",
    "router.ingress",
    "router.http_route",
    "router.resources",
    *(f"router.{name}" for name in Placement.model_fields),
    "router.limits.max_held",
    "router.timeouts.wake_seconds",
    "directory.managed.resources",
    *(f"directory.managed.{name}" for name in Placement.model_fields),
    "rollout.max_surge",
    "rollout.max_unavailable",
    "network_policy",
    "monitoring",
)


_USED_BY_VLLM = (
    "model.adapters.uri",
    "model.adapter_max_rank",
    "engine.env",
    "engine.host_memory.capacity",
    "engine.host_memory.disk.capacity",
    "engine.host_memory.disk.path",
)


def refuse_cluster_fields(pool: InferencePool, source: str) -> None:
    """ManifestError with the fields that one machine can't serve."""
    spec, mistakes = pool.spec, []
    if spec.engine.runtime == "VLLM":
        mistakes += _vllm_mistakes(pool)
    if spec.router.gateway_ref is not None:
        mistakes.append("spec.router.gatewayRef: may not be set in local mode: a local pool has its own router")
    if spec.router.auth.api_keys_ref is not None or spec.router.auth.admin_key_ref is not None:
        mistakes.append("spec.router.auth: may not refer to Secrets in local mode; use plumage up --api-keys FILE")
    if spec.router.tls is not None:
        mistakes.append("spec.router.tls: may not refer to a Secret in local mode: plumage up serves plain HTTP")
    if spec.engine.external is not None:
        mistakes.append("spec.engine.external: may not be set in local mode: plumage up runs the engines")
    if spec.engine.tls is not None:
        mistakes.append("spec.engine.tls: may not refer to Secrets in local mode: engines are on loopback addresses")
    if spec.keys_ref is not None:
        mistakes.append("spec.keysRef: may not refer to a Secret in local mode: plumage up makes the pool's keys")
    if spec.directory.redis_ref is not None:
        secrets = (("passwordRef", spec.directory.redis_ref.password_ref), ("caRef", spec.directory.redis_ref.ca_ref))
        mistakes += [
            f"spec.directory.redisRef.{name}: may not refer to a Secret in local mode"
            for name, secret in secrets
            if secret is not None
        ]
    if not spec.model.uri.startswith(("builtin://", "file://")):
        mistakes.append(f"spec.model.uri: must be builtin:// or file:// in local mode, got {spec.model.uri!r}")
    if mistakes:
        raise ManifestError(source, mistakes)


def _vllm_mistakes(pool: InferencePool) -> list[str]:
    """Fields of a pool with vLLM that need a cluster."""
    spec = pool.spec
    found = [
        f"spec.model.adapters: {adapter.name}: uri must be file:// in local mode, got {adapter.uri!r}"
        for adapter in spec.model.adapters
        if not adapter.uri.startswith("file://")
    ]
    if any(variable.value_from is not None for variable in spec.engine.env):
        found.append("spec.engine.env: may not refer to Secrets or ConfigMaps in local mode")
    return found


def without_local_effect(pool: InferencePool) -> list[str]:
    """Fields that the manifest sets and that have no effect in local mode."""
    used: tuple[str, ...] = _USED_BY_VLLM if pool.spec.engine.runtime == "VLLM" else ()
    if all(variable.name == STORE_VARIABLE for variable in pool.spec.engine.env):
        used += ("engine.env",)
    ways = [path.split(".") for path in WITHOUT_EFFECT if path not in used]
    return [".".join(["spec", *map(to_camel, way)]) for way in ways if _is_set(pool.spec, way)]


def _is_set(struct: object, path: list[str]) -> bool:
    """Whether the manifest sets the field at `path` (Python names). In a list, whether any item sets it."""
    if isinstance(struct, tuple):
        return any(_is_set(item, path) for item in struct)
    return path[0] in getattr(struct, "model_fields_set", ()) and (
        len(path) == 1 or _is_set(getattr(struct, path[0]), path[1:])
    )


def of_unchosen_policies(pool: InferencePool) -> list[str]:
    """Fields that the manifest sets for a policy, form or tier that it does not choose."""
    paths = [path for path, used in _USED_IF.items() if _is_set(pool.spec, path.split(".")) and not used(pool.spec)]
    whole = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
    return [".".join(["spec", *map(to_camel, path.split("."))]) for path in whole]


def _feather(*policies: str) -> Callable[[Any], bool]:
    return lambda spec: spec.engine.feather.policy in policies


def _routing(*policies: str) -> Callable[[Any], bool]:
    return lambda spec: spec.router.policy in policies


def _our_bandit(*forgetting: str) -> Callable[[Any], bool]:
    """Plumage's form of the bandit; with one of these memories, if any are given."""

    def used(spec: Any) -> bool:
        feather = spec.engine.feather
        ours = (feather.policy, feather.bandit.form) == ("Bandit", "Adaptive")
        return ours and (not forgetting or feather.bandit.forgetting in forgetting)

    return used


def _our_q_learning(spec: Any) -> bool:
    feather = spec.engine.feather
    return bool((feather.policy, feather.q_learning.form) == ("QLearning", "Adaptive"))


# Python names. A test changes every field of the manifest under every policy and compares with this list.
_USED_IF: dict[str, Callable[[Any], bool]] = {
    "engine.feather.candidate_order": _feather("Bandit", "QLearning", "Heuristic", "Predictive", "ChtOrder"),
    "engine.feather.heuristic": _feather("Heuristic"),
    "engine.feather.bandit": _feather("Bandit"),
    "engine.feather.bandit.exploration": _our_bandit(),
    "engine.feather.bandit.forgetting": _our_bandit(),
    "engine.feather.bandit.discount": _our_bandit("Discounted"),
    "engine.feather.bandit.discount_interval": _our_bandit("Discounted"),
    "engine.feather.bandit.window": _our_bandit("SlidingWindow"),
    "engine.feather.bandit.credit": _our_bandit(),
    "engine.feather.q_learning": _feather("QLearning"),
    "engine.feather.q_learning.exploration_decay": _our_q_learning,
    "engine.feather.q_learning.credit": _our_q_learning,
    "engine.eviction.hotness": lambda spec: spec.engine.eviction.policy == "Hotness",
    "engine.host_memory.min_frequency": lambda spec: spec.engine.host_memory.admission != "All",
    "engine.host_memory.priority": lambda spec: ranks_by_hotness(spec.engine.host_memory),
    "engine.simulator.host_blocks": lambda spec: spec.engine.host_memory is not None,
    "router.lbgr.miss_milliseconds_per_kilotoken": _routing("Lbgr", "LbgrPaper"),
    "router.lbgr.hit_milliseconds_per_kilotoken": _routing("Lbgr", "LbgrPaper"),
    "router.lbgr.forgetting": _routing("Lbgr", "LbgrPaper"),
    "router.lbgr.considered_replicas": _routing("Lbgr"),
    "router.lbgr.decay_interval_milliseconds": _routing("LbgrPaper"),
}
