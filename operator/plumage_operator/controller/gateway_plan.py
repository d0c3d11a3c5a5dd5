"""All that the operator decides about an `InferenceGateway`: its routers, and what is said of it. Pure.

Level-based as a pool's plan, of whose rules it makes use. A pool that comes or goes changes one ConfigMap, which the
routers follow; an annotation on their pods makes their kubelets look at once instead of within a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from plumage.api.v1alpha1 import InferenceGateway, parse_kept
from plumage.cluster import GROUP
from plumage.errors import ManifestError
from plumage_operator.config import Site
from plumage_operator.controller.actions import Action, Annotate, WriteStatus
from plumage_operator.controller.plan import brought_about, removed, told
from plumage_operator.controller.served_pools import Serving, serving_of
from plumage_operator.observed import Object, Observed, ObservedGateway, key_of, meta, part_of, status_of
from plumage_operator.resources import APPLIED, GatewayScene, build_gateway_children
from plumage_operator.resources.context import goes, is_paused
from plumage_operator.status.component_status import counts, gateway_fact
from plumage_operator.status.conditions import Fact, Reason, Type, set_condition
from plumage_operator.status.pool_status import accepted_refusal, changed_materially

__all__ = ["CONFIG_SEEN", "gateway_changes", "gateway_words"]

CONFIG_SEEN: Final = f"{GROUP}/config"
"""On a gateway's pods: which ConfigMap its kubelet was pointed at."""


def gateway_changes(observed: ObservedGateway, site: Site) -> tuple[Action, ...]:
    """What makes the cluster as the spec says."""
    if goes(observed.own.pool) or is_paused(observed.own.pool):
        return ()
    gateway, _ = _read(observed.own.pool)
    if gateway is None:
        return ()
    scene = GatewayScene(gateway, site, serving_of(observed, gateway, site).served)
    return tuple(_changes(observed.own, scene))


def gateway_words(observed: ObservedGateway, site: Site, now: float) -> tuple[Action, ...]:
    """What is said of the gateway: events, then its status. now: seconds since 1970."""
    thing = observed.own.pool
    if goes(thing):
        return ()
    gateway, mistakes = _read(thing)
    if gateway is None:
        message = "; ".join(mistakes)
        facts = tuple(Fact(type_, "False", Reason.INVALID_SPEC, message) for type_ in (Type.READY, Type.ACCEPTED))
        return tuple(_told(observed.own, facts, {}, now))
    serving = serving_of(observed, gateway, site)
    scene = GatewayScene(gateway, site, serving.served)
    return tuple(_told(observed.own, _facts(observed.own, scene, serving), _figures(observed.own, scene), now))


def _read(thing: Object) -> tuple[InferenceGateway | None, list[str]]:
    """The gateway, or None and what is wrong with its spec."""
    try:
        read = parse_kept({key: value for key, value in thing.items() if key != "status"}, "the gateway")
    except ManifestError as error:
        return None, list(error.mistakes)
    assert isinstance(read, InferenceGateway), "the watch is for gateways"
    return read, []


def _changes(own: Observed, scene: GatewayScene) -> Iterator[Action]:
    wanted = build_gateway_children(scene)
    for child in wanted:
        yield from brought_about(own, child)
    yield from removed(own, {key_of(child) for child in wanted})
    config = next(child for child in wanted if child["kind"] == "ConfigMap")
    if not any(brought_about(own, config)):  # it is there: now its readers may look
        for pod in part_of(own.pods, "gateway"):
            seen = {CONFIG_SEEN: config["metadata"]["annotations"][APPLIED]}
            if not seen.items() <= (meta(pod).get("annotations") or {}).items():
                yield Annotate(str(meta(pod)["name"]), seen)


def _facts(own: Observed, scene: GatewayScene, serving: Serving) -> tuple[Fact, ...]:
    accepted, routers = _accepted(own, serving), gateway_fact(own, scene, scene.gateway.spec.replicas)
    wrong = next((fact for fact in (accepted, routers) if fact.status != "True"), None)
    if wrong is not None:
        ready = Fact(Type.READY, "False", wrong.reason, wrong.message)
    elif not serving.served:
        why = "none of the pools that refer to it can be served: their own conditions tell why"
        ready = Fact(Type.READY, "False", Reason.NO_POOL, why)
    else:
        names = ", ".join(name for one in serving.served for name in one.names)
        ready = Fact(Type.READY, "True", routers.reason, f"{routers.message}, for models {names}")
    return (ready, accepted, routers)


def _accepted(own: Observed, serving: Serving) -> Fact:
    """What is served is served, whatever else is wrong."""
    if own.refusals:
        return accepted_refusal(own.refusals)
    if not serving.faults:
        return Fact(Type.ACCEPTED, "True", Reason.VALID, "")
    said = "; ".join(fault.message for fault in serving.faults)
    return Fact(Type.ACCEPTED, "False", serving.faults[0].reason, said)


def _figures(own: Observed, scene: GatewayScene) -> dict[str, Any]:
    found, host = counts(own, scene, "gateway"), f"{scene.name('gateway')}.{scene.namespace}.svc"
    return {
        "replicas": found.total,
        "readyReplicas": found.ready,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(scene.selector("gateway").items())),
        "addresses": [f"http://{host}:{listener.port}" for listener in scene.gateway.spec.listeners],
        "pools": sorted(one.scene.metadata.name for one in scene.served),
    }


def _told(own: Observed, facts: tuple[Fact, ...], figures: dict[str, Any], now: float) -> Iterator[Action]:
    before, generation = status_of(own.pool), int(meta(own.pool).get("generation", 0))
    conditions = tuple(before.get("conditions") or ())
    for fact in facts:
        conditions = set_condition(conditions, fact, generation, now)
    kept = [dict(one) for one in conditions]
    status = {**before, **figures, "observedGeneration": generation, "conditions": kept}
    if changed_materially(before, status):
        yield from told(own, facts)
        yield WriteStatus(status)
