"""All decisions about an `InferenceGateway`: its routers, its events and its status. Pure.

Level-based, as a pool's plan. A pool that is added or removed changes one ConfigMap, and the routers reload it. An
annotation on their pods makes the kubelets update the file at once instead of within a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from plumage.api.v1alpha1 import InferenceGateway, parse_kept
from plumage.cluster import GROUP
from plumage.errors import ManifestError
from plumage_operator.config import OperatorConfig
from plumage_operator.controller.actions import Action, Annotate, WriteStatus
from plumage_operator.controller.plan import condition_events, delete_unwanted, ensure_child
from plumage_operator.controller.served_pools import ServedPools, find_served_pools
from plumage_operator.observed import Object, Observed, ObservedGateway, component_pods, key_of, meta, status_of
from plumage_operator.resources import APPLIED, GatewayContext, build_gateway_children
from plumage_operator.resources.context import is_deleting, is_paused
from plumage_operator.resources.router import port_name
from plumage_operator.status.component_status import count_replicas, gateway_condition
from plumage_operator.status.conditions import Condition, Reason, Type, set_condition
from plumage_operator.status.pool_status import is_worth_writing, refused_condition

__all__ = ["CONFIG_SEEN", "plan_gateway_changes", "plan_gateway_status"]

CONFIG_SEEN: Final = f"{GROUP}/config"
"""Annotation of a gateway's pods: the ConfigMap that the kubelet was last notified of."""


def plan_gateway_changes(observed: ObservedGateway, config: OperatorConfig) -> tuple[Action, ...]:
    """Makes the cluster as the spec says."""
    if is_deleting(observed.own.pool) or is_paused(observed.own.pool):
        return ()
    gateway, _ = _read(observed.own.pool)
    if gateway is None:
        return ()
    serving = find_served_pools(observed, gateway, config)
    context = GatewayContext(gateway, config, serving.served, serving.shared)
    return tuple(_changes(observed.own, context))


def plan_gateway_status(observed: ObservedGateway, config: OperatorConfig, now: float) -> tuple[Action, ...]:
    """Events about the gateway, then its status. now: seconds since 1970."""
    thing = observed.own.pool
    if is_deleting(thing):
        return ()
    gateway, mistakes = _read(thing)
    if gateway is None:
        message = "; ".join(mistakes)
        conditions = tuple(
            Condition(type_, "False", Reason.INVALID_SPEC, message) for type_ in (Type.READY, Type.ACCEPTED)
        )
        return tuple(_status_actions(observed.own, conditions, {}, now))
    serving = find_served_pools(observed, gateway, config)
    context = GatewayContext(gateway, config, serving.served, serving.shared)
    return tuple(
        _status_actions(observed.own, _conditions(observed.own, context, serving), _fields(observed.own, context), now)
    )


def _read(thing: Object) -> tuple[InferenceGateway | None, list[str]]:
    """The gateway, or None and what is wrong with its spec."""
    try:
        read = parse_kept({key: value for key, value in thing.items() if key != "status"}, "the gateway")
    except ManifestError as error:
        return None, list(error.mistakes)
    assert isinstance(read, InferenceGateway), "the watch is for gateways"
    return read, []


def _changes(own: Observed, context: GatewayContext) -> Iterator[Action]:
    wanted = build_gateway_children(context)
    for child in wanted:
        yield from ensure_child(own, child)
    yield from delete_unwanted(own, {key_of(child) for child in wanted})
    config = next(child for child in wanted if child["kind"] == "ConfigMap")
    if not any(ensure_child(own, config)):  # the ConfigMap is current: now the kubelets may read it
        for pod in component_pods(own.pods, "gateway"):
            seen = {CONFIG_SEEN: config["metadata"]["annotations"][APPLIED]}
            if not seen.items() <= (meta(pod).get("annotations") or {}).items():
                yield Annotate(str(meta(pod)["name"]), seen)


def _conditions(own: Observed, context: GatewayContext, serving: ServedPools) -> tuple[Condition, ...]:
    accepted, routers = _accepted(own, serving), gateway_condition(own, context, context.gateway.spec.replicas)
    wrong = next((condition for condition in (accepted, routers) if condition.status != "True"), None)
    if wrong is not None:
        ready = Condition(Type.READY, "False", wrong.reason, wrong.message)
    elif not serving.served:
        why = "no pool that refers to it can be served: see their own conditions"
        ready = Condition(Type.READY, "False", Reason.NO_POOL, why)
    else:
        message = f"{routers.message}, for models {', '.join(serving.names)}"
        ready = Condition(Type.READY, "True", routers.reason, message)
    return (ready, accepted, routers)


def _accepted(own: Observed, serving: ServedPools) -> Condition:
    """The pools that can be served are served, whatever else is wrong."""
    if own.refusals:
        return refused_condition(own.refusals)
    if not serving.problems:
        return Condition(Type.ACCEPTED, "True", Reason.VALID, "")
    message = "; ".join(fault.message for fault in serving.problems)
    return Condition(Type.ACCEPTED, "False", serving.problems[0].reason, message)


def _fields(own: Observed, context: GatewayContext) -> dict[str, Any]:
    spec = context.gateway.spec
    found, host = count_replicas(own, context, "gateway"), f"{context.name('gateway')}.{context.namespace}.svc"
    return {
        "replicas": found.total,
        "readyReplicas": found.ready,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(context.selector("gateway").items())),
        "addresses": [f"{port_name(spec.tls)}://{host}:{listener.port}" for listener in spec.listeners],
        "pools": sorted(one.context.metadata.name for one in context.served),
    }


def _status_actions(
    own: Observed, conditions: tuple[Condition, ...], fields: dict[str, Any], now: float
) -> Iterator[Action]:
    before, generation = status_of(own.pool), int(meta(own.pool).get("generation", 0))
    written = tuple(before.get("conditions") or ())
    for condition in conditions:
        written = set_condition(written, condition, generation, now)
    kept = [dict(one) for one in written]
    status = {**before, **fields, "observedGeneration": generation, "conditions": kept}
    if is_worth_writing(before, status):
        yield from condition_events(own, conditions)
        yield WriteStatus(status)
