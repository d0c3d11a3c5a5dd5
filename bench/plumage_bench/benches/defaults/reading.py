"""Which fields of the API have an effect: each gets another value, and everything that a manifest makes is compared.

A manifest makes the operator's objects, local mode's processes with their files, and the autoscaler's decisions for one
load. A field counts as read if one of them changes. There is no list of exceptions. `process_fields.py` checks that the
processes use what is written for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from plumage.api.v1alpha1 import InferenceGateway, InferenceGatewaySpec, InferencePool, InferencePoolSpec
from plumage.api.v1alpha1.struct import Struct
from plumage_bench.benches.defaults.leaves import leaves, others
from plumage_bench.benches.defaults.manifests import GATEWAY, POOLS, put
from plumage_bench.benches.defaults.process_fields import unread_of_processes
from plumage_bench.benches.defaults.scaling import decisions
from plumage_cli.local.plan.paths import LocalPaths
from plumage_cli.local.plan.processes import plan_replica, plan_router
from plumage_cli.local.plan.vllm import VllmInterpreter
from plumage_operator.config import OperatorConfig
from plumage_operator.controller.served_pools import find_served_pools
from plumage_operator.observed import AttachedPool, Observed, ObservedGateway, external_of
from plumage_operator.resources import GatewayContext, PoolContext, build_children, build_gateway_children

__all__ = ["NOT_SET", "gateway_makes", "pool_makes", "unread", "unread_of_gateway", "unread_of_pool"]

NOT_SET: Final = "(or it is not set in defaults/manifests.py)"
"""A value for each field that no manifest here sets. A new field needs an entry."""
_CONFIG: Final = OperatorConfig(image="plumage:1", engine_image="engine:1")
_LOCAL: Final = LocalPaths(
    Path("/run/pool"), Path("/models/tiny"), "unix:///run/pool/directory.sock", vllm=VllmInterpreter("python")
)
_META: Final = {"namespace": "default", "uid": "uid", "generation": 1}


def pool_makes(spec: Mapping[str, Any]) -> Any:
    """Everything that a pool with that spec makes. ValidationError for an invalid spec."""
    thing = _object("InferencePool", "chat", spec)
    pool = InferencePool.model_validate(thing)
    made: dict[str, Any] = {
        "operator": build_children(PoolContext(pool, _CONFIG, pool.spec.initial_replicas)),
        "external": external_of(thing),  # the object that the operator reads the engines' labels from
        "local": (plan_replica(pool, _LOCAL, 0, 20_001, 20_002), plan_router(pool, _LOCAL, 8000)),
    }
    if pool.spec.autoscaling is not None:
        made["autoscaler"] = decisions(pool.spec.autoscaling)
    return made


def gateway_makes(spec: Mapping[str, Any]) -> Any:
    """Everything that a gateway with that spec makes, with two pools. ValidationError for an invalid spec."""
    thing = _object("InferenceGateway", "front", spec)
    gateway = InferenceGateway.model_validate(thing)
    pools = tuple(AttachedPool(_object("InferencePool", name, _behind(name))) for name in ("chat", "code"))
    observed = ObservedGateway(Observed(thing, {}), pools, frozenset({"chat", "code"}))
    serving = find_served_pools(observed, gateway, _CONFIG)
    return build_gateway_children(GatewayContext(gateway, _CONFIG, serving.served, serving.shared)), serving.problems


def _behind(name: str) -> dict[str, Any]:
    router = {"gatewayRef": {"name": "front"}}
    return {"model": {"uri": "builtin://tiny-chat", "name": name}, "engine": {"runtime": "Simulator"}, "router": router}


def _object(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    meta = {**_META, "name": name}
    return {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def unread() -> list[str]:
    """The fields of both kinds, and the settings of processes, that have no effect."""
    return [*unread_of_pool(), *unread_of_gateway(), *unread_of_processes()]


def unread_of_pool(struct: type[Struct] = InferencePoolSpec, makes: Callable[[Any], Any] = pool_makes) -> list[str]:
    """Those of a pool. struct, makes: its model and the function that makes its objects; a test passes a model with one
    more field."""
    return [f"InferencePool spec.{path}" for path in _unread(struct, POOLS, makes)]


def unread_of_gateway() -> list[str]:
    """Those of a gateway."""
    return [f"InferenceGateway spec.{path}" for path in _unread(InferenceGatewaySpec, {"": GATEWAY}, gateway_makes)]


def _unread(struct: type[Struct], bases: Mapping[str, Mapping[str, Any]], makes: Callable[[Any], Any]) -> Iterator[str]:
    made = {name: makes(spec) for name, spec in bases.items()}
    for path, field in leaves(struct):
        places = [(name, *found) for name, spec in bases.items() for found in _places(spec, path)]
        # Where the field or its section is set, it likely has an effect.
        places.sort(key=lambda found: (found[2] is None, _unset_sections(bases[found[0]], path)))
        tried = (
            (name, put(dict(bases[name]), place, other))
            for name, place, value in places
            for other in others(path, field, field.default if value is None else value)
        )
        if not any(_differs(makes, spec, made[name]) for name, spec in tried):
            yield path if _is_set(bases.values(), path) else f"{path} {NOT_SET}"


def _is_set(specs: Iterable[Mapping[str, Any]], path: str) -> bool:
    return any(value is not None for spec in specs for _, value in _places(spec, path))


def _differs(makes: Callable[[Any], Any], spec: Any, before: Any) -> bool:
    try:
        return bool(makes(spec) != before)
    except ValidationError:
        return False


def _unset_sections(spec: Any, path: str) -> int:
    """How many of the sections that hold a field a spec does not set."""
    *sections, _ = path.split(".")
    for number, name in enumerate(sections):
        spec = spec.get(name)
        spec = spec[0] if isinstance(spec, list) and spec else spec
        if not spec:
            return len(sections) - number
    return 0


def _places(spec: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The places of a field in a spec, with `[0]` for a list's entry, and its value; None if it is not set."""
    name, _, rest = path.partition(".")
    value = spec.get(name)
    if not rest:
        yield name, value
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from ((f"{name}[{number}].{place}", found) for place, found in _places(entry, rest))
    else:
        yield from ((f"{name}.{place}", found) for place, found in _places(value or {}, rest))
