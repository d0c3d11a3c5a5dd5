"""Every field of a pool's `spec` has an effect in local mode, is refused there, or is reported as without effect.

The fields are read from the models: a new field must be used in the plan or added to `WITHOUT_EFFECT`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.alias_generators import to_camel

from plumage.api.v1alpha1 import InferencePool, InferencePoolSpec, Quantity, parse_pool
from plumage.api.v1alpha1.struct import Struct
from plumage.errors import ManifestError
from plumage_cli.local.plan.paths import LocalPaths
from plumage_cli.local.plan.processes import plan_replica, plan_router
from plumage_cli.local.plan.unused_fields import (
    WITHOUT_EFFECT,
    of_unchosen_policies,
    refuse_cluster_fields,
    without_local_effect,
)

LOCAL = Path(__file__).parents[3] / "cli" / "plumage_cli"
PATHS = LocalPaths(Path("/run/plumage/chat"), Path("/models/tiny"), "unix:///run/plumage/chat/dir/directory.sock")
BASE: dict[str, Any] = {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}}
SECRET = {"name": "keys", "key": "key"}

# Fields that are read outside the plan: the file, and the code that reads them.
ELSEWHERE = {
    "model.uri": ("local/pool/supervisor.py", "model.tokenizer or model.uri"),
    "model.tokenizer": ("local/pool/supervisor.py", "model.tokenizer or model.uri"),
    "replicas": ("local/pool/supervisor.py", "self.pool.spec.initial_replicas"),
    "directory.managed.max_memory": ("local/pool/supervisor.py", "int(spec.managed.max_memory)"),
    "directory.redis_ref.url": ("local/pool/supervisor.py", "return spec.redis_ref.url"),
    "router.service.port": ("commands/up.py", "pool.spec.router.service.port"),
}
REFUSED = {
    "engine.runtime", "engine.args", "engine.tensor_parallel_size", "engine.tls", "engine.external",
    "router.gateway_ref",
    "router.auth.api_keys_ref", "router.auth.admin_key_ref", "router.tls", "keys_ref.name", "quotas",
    "directory.redis_ref.username", "directory.redis_ref.password_ref", "directory.redis_ref.ca_ref",
}  # fmt: skip
# Other settings under which a field counts, as its description says.
CONTEXT: dict[str, dict[str, Any]] = {
    "model.adapters.": {"model.adapters": [{"name": "law", "uri": "file:///law"}]},
    "engine.feather.heuristic.": {"engine.feather.policy": "Heuristic"},
    "engine.feather.bandit.": {"engine.feather.policy": "Bandit"},
    "engine.feather.bandit.window": {"engine.feather.bandit.forgetting": "SlidingWindow"},
    "engine.feather.q_learning.": {"engine.feather.policy": "QLearning"},
    "engine.eviction.hotness.": {"engine.eviction.policy": "Hotness"},
    "engine.eviction.hotness.priority": {"engine.eviction.hotness.form": "Paper"},
    "engine.eviction.hotness.aging_interval": {"engine.eviction.hotness.form": "Paper"},
    "engine.eviction.hotness.filter.": {"engine.eviction.hotness.form": "Paper"},
    "engine.host_memory.": {"engine.hostMemory": {}},
    "engine.host_memory.disk.": {"engine.hostMemory": {"disk": {"capacity": "1Gi"}}},
    "engine.simulator.host_blocks": {"engine.hostMemory": {}},
    "router.endpoint_picker.": {"router.endpointPicker": {}},
    "router.lbgr.decay_interval_milliseconds": {"router.policy": "LbgrPaper"},
    "tracing.sampling_rate_per_million": {"tracing.endpoint": "http://one:4318"},
}
PLACED: dict[str, Any] = {
    "node_selector": {"a": "b"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topology_spread_constraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "priority_class_name": "high",
}
# Values for fields whose type does not suggest one that differs from the default.
SAMPLES: dict[str, Any] = {
    "model.uri": "file:///models/other",
    "model.name": "other",
    "model.revision": "main",
    "model.token_ref": SECRET,
    "model.tokenizer": "file:///models/other",
    "model.aliases": ["other"],
    "model.adapters.name": "other",
    "model.adapters.uri": "file:///other",
    "engine.runtime": "VLLM",
    "engine.args": ["--x"],
    "engine.eviction.hotness.priority": "frequency",
    "engine.host_memory.priority": "frequency",
    "engine.feather.bandit.exploration": "0.5",
    "engine.feather.heuristic.loss_threshold": 3,
    "router.gateway_ref": {"name": "front"},
    "keys_ref.name": "mine",
    "router.auth.api_keys_ref": SECRET,
    "router.auth.admin_key_ref": SECRET,
    "router.tls": {"secretName": "chat-tls"},
    "engine.tls": {"secretName": "chat-engine-tls"},
    "engine.external": {"inferencePoolRef": {"name": "theirs"}},
    "router.limits.max_body_bytes": "2Mi",
    "router.allowed_request_fields": ["priority"],
    "router.limits.body_memory": "128Mi",
    "router.lbgr.forgetting": "0.75",
    "directory.redis_ref.url": "redis://127.0.0.1:1",
    "directory.redis_ref.username": "plumage",
    "directory.redis_ref.password_ref": SECRET,
    "directory.redis_ref.ca_ref": SECRET,
    "directory.managed.max_memory": "64Mi",
    "autoscaling": {"maxReplicas": 3},
    "engine.env": [{"name": "A", "value": "b"}],
    "model.fetch_resources": {"limits": {"cpu": "1"}},
    "engine.resources": {"limits": {"cpu": "1"}},
    "engine.agent_resources": {"limits": {"cpu": "1"}},
    "directory.managed.resources": {"limits": {"cpu": "1"}},
    "engine.image": "engine:1",
    "engine.shared_memory": "1Gi",
    "engine.model_cache": {"sizeLimit": "1Gi"},
    "engine.host_memory.capacity": "1Gi",
    "engine.host_memory.disk.capacity": "2Gi",
    "engine.host_memory.disk.claim_name": "kv",
    "engine.host_memory.disk.path": "/kv",
    **{f"{part}.{name}": value for part in ("engine", "router", "directory.managed") for name, value in PLACED.items()},
    "engine.runtime_class_name": "nvidia",
    "engine.scheduler_name": "other",
    "engine.service_account_name": "other",
    "engine.image_pull_secrets": [{"name": "pull"}],
    "router.service.annotations": {"a": "b"},
    "router.ingress": {"host": "chat.example"},
    "router.http_route": {"parentRefs": [{"name": "front"}]},
    "router.resources": {"limits": {"cpu": "1"}},
    "router.endpoint_picker.proxy_namespaces": ["envoy"],
    "router.endpoint_picker.inference_pool": {},
    "tracing.endpoint": "http://one:4318",
    "quotas": [{"tenant": "alice", "requestsPerMinute": 60}],
    "flow_control": {"classes": [{"name": "chat", "ttftMilliseconds": 500}]},
    "router.shadow_policy": "PrefixAware",
    "network_policy": {"enabled": False},
    "monitoring": {"enabled": True},
    "rollout.max_surge": 2,
    "rollout.max_unavailable": 1,
}


def structs(form: Any) -> list[type[Struct]]:
    if isinstance(form, type) and issubclass(form, Struct):
        return [form]
    return [found for part in get_args(form) for found in structs(part)]


def fields(struct: type[Struct], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every field by its dotted Python name, down to the sections that `WITHOUT_EFFECT` or `SAMPLES` names."""
    for name, field in struct.model_fields.items():
        path = before + name
        below = [] if path in WITHOUT_EFFECT or path in SAMPLES else structs(field.annotation)
        if not below:
            yield path, field
        for part in below:
            yield from fields(part, f"{path}.")


FIELDS = dict(fields(InferencePoolSpec))


def another(path: str, field: Any) -> Any:
    """A valid value that is not the default."""
    if path in SAMPLES:
        return SAMPLES[path]
    form, default = field.annotation, field.default
    if get_origin(form) is Literal:
        return next(value for value in reversed(get_args(form)) if value != default)
    if form is bool:
        return not default
    if isinstance(default, Quantity):
        return "0.5" if float(default) != 0.5 else "0.25"
    number = 50 if default is None else default
    assert isinstance(number, int), f"no value to try for {path}: put one into SAMPLES"
    return number + 1


def put(spec: dict[str, Any], path: str, value: Any) -> None:
    *way, last = [to_camel(name) for name in path.split(".")]
    part: Any = spec
    for name in way:
        part = part.setdefault(name, {})
        part = part[0] if isinstance(part, list) else part
    part[last] = value


def pools(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two specs that differ in this field only."""
    plain = deepcopy(BASE)
    for prefix, settings in CONTEXT.items():
        if path.startswith(prefix):
            for name, value in settings.items():
                put(plain, name, deepcopy(value))
    changed = deepcopy(plain)
    if path.startswith("directory.redis_ref.") and not path.endswith("url"):
        put(changed, "directory.redis_ref.url", "rediss://127.0.0.1:1")
    put(changed, path, another(path, FIELDS[path]))
    return plain, changed


def parsed(spec: dict[str, Any]) -> InferencePool:
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "chat"}}
    return parse_pool({**kind, "spec": spec}, "pool.yaml")


def plans(pool: InferencePool) -> Any:
    replica = plan_replica(pool, PATHS, 0, 20_001, 20_002)
    return replica.engine.settings, replica.agent.settings, plan_router(pool, PATHS, 8000).settings


def is_refused(spec: dict[str, Any]) -> bool:
    try:
        refuse_cluster_fields(parsed(spec), "pool.yaml")
    except ManifestError:
        return True
    return False


@pytest.mark.parametrize("path", FIELDS)
def test_field_has_an_effect_or_is_reported_without_one(path: str) -> None:
    plain, changed = pools(path)
    named = "spec." + ".".join(map(to_camel, path.split(".")))
    assert not is_refused(plain)
    assert is_refused(changed) == (path in REFUSED)
    if path in REFUSED:
        return
    effect = plans(parsed(plain)) != plans(parsed(changed)) or path in ELSEWHERE
    reported = named in without_local_effect(parsed(changed))
    assert reported == (path in WITHOUT_EFFECT)
    assert of_unchosen_policies(parsed(changed)) == []
    assert effect != reported, f"{named} has {'an' if effect else 'no'} effect on one machine, and is {reported=}"


@pytest.mark.parametrize(
    "chosen",
    [
        *(
            {"engine.feather.policy": policy}
            for policy in ("Bandit", "QLearning", "Heuristic", "Predictive", "ChtOrder", "Fcfs")
        ),
        *({"engine.feather.bandit.forgetting": form} for form in ("SlidingWindow", "None")),
        {"engine.feather.policy": "Fcfs", "engine.feather.bandit.forgetting": "SlidingWindow"},
        {"engine.feather.policy": "Bandit", "engine.feather.bandit.form": "Paper"},
        {"engine.feather.policy": "QLearning", "engine.feather.q_learning.form": "Paper"},
        {"engine.feather.policy": "Heuristic", "engine.feather.bandit.form": "Paper"},
        {"engine.eviction.policy": "Rlt"},
        {"engine.eviction.policy": "Lru", "engine.eviction.hotness.form": "Paper"},
        {"engine.host_memory.admission": "All", "engine.host_memory.promotion": "Off"},
        {"engine.host_memory.admission": "Frequency", "engine.host_memory.promotion": "Depth"},
        {"engine.host_memory.admission": "Frequency", "engine.host_memory.promotion": "Hotness"},
        *({"router.policy": policy} for policy in ("LbgrPaper", "RoundRobin")),
        {},
    ],
    ids=str,
)
def test_field_without_effect_is_reported_under_every_policy(chosen: dict[str, Any]) -> None:
    """Under each policy, every field changes a process's settings, or `up` reports it as without effect."""
    plain = deepcopy(BASE)
    for name, value in chosen.items():
        put(plain, name, value)
    before = plans(parsed(plain))
    for path in set(FIELDS) - REFUSED - set(WITHOUT_EFFECT) - set(ELSEWHERE) - set(chosen):
        changed = deepcopy(plain)
        put(changed, path, another(path, FIELDS[path]))
        try:
            after = parsed(changed)
        except ManifestError:
            continue  # the field does not go together with this policy
        named = "spec." + ".".join(map(to_camel, path.split(".")))
        reported = any(named == one or named.startswith(f"{one}.") for one in of_unchosen_policies(after))
        assert (before == plans(after)) == reported, (named, of_unchosen_policies(after))


def test_fields_of_other_readers_are_read_there() -> None:
    for path, (file, code) in ELSEWHERE.items():
        assert path in FIELDS
        assert code in (LOCAL / file).read_text(), path


def test_lists_name_existing_fields_only() -> None:
    assert set(WITHOUT_EFFECT) | REFUSED <= set(FIELDS)
    assert not REFUSED & set(WITHOUT_EFFECT), "a refused field needs no entry here"
    assert set(SAMPLES) <= set(FIELDS)
    assert all(any(path.startswith(prefix) for path in FIELDS) for prefix in CONTEXT)
