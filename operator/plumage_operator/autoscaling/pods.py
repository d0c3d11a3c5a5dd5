"""A pool's pods for the autoscaler: which to poll, and which are ready, starting or broken. Pure.

A pool's pods are those that its own Deployments made. Labels prove nothing: anyone who may create pods may label
them, and a polled pod receives the operator's token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plumage.autoscaling import DELETION_COST
from plumage.cluster import AGENT_PORT, COMPONENT_LABEL, ROUTER_PORT, Component, child_name
from plumage.fleet_report import FLEET_PATH, STATS_PATH
from plumage_operator.observed import Object, Observed, meta
from plumage_operator.resources.context import SERVES_TLS

__all__ = ["PoolPods", "ScaledPod", "pods_observed", "pods_of_pool"]

_STARTING_REASONS: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that will start by itself; any other reason is a failure."""


@dataclass(frozen=True, slots=True)
class ScaledPod:
    """One pod.

    url: of its report; None before it has an address.
    starting: it is scheduled and not Ready, and none of its containers failed or restarted.
    cost: its deletion cost, if it has one.
    """

    name: str
    url: str | None
    ready: bool
    starting: bool
    cost: str | None = None


@dataclass(frozen=True, slots=True)
class PoolPods:
    """The pods that are not being deleted."""

    engines: tuple[ScaledPod, ...] = ()
    routers: tuple[ScaledPod, ...] = ()


def pods_of_pool(pool: str, pods: Sequence[Object]) -> PoolPods:
    """Returns the pods of a pool with own routers. The agents of engine pods are polled."""
    engines = _part(pods, pool, "engine", AGENT_PORT, STATS_PATH)
    return PoolPods(engines, _part(pods, pool, "router", ROUTER_PORT, FLEET_PATH))


def pods_observed(observed: Observed) -> PoolPods:
    """Returns the pods of any pool. A gateway's routers are polled about this pool."""
    pool = str(meta(observed.pool)["name"])
    own = pods_of_pool(pool, observed.pods)
    if observed.gateway is None:
        return own
    gateway, path = str(meta(observed.gateway)["name"]), f"{FLEET_PATH}?pool={pool}"
    return PoolPods(own.engines, _part(observed.gateway_pods, gateway, "gateway", ROUTER_PORT, path))


def _part(pods: Iterable[Object], owner: str, component: Component, port: int, path: str) -> tuple[ScaledPod, ...]:
    deployment = child_name(owner, component)
    found = [pod for pod in pods if "deletionTimestamp" not in meta(pod) and _made_by(deployment, pod)]
    found = [pod for pod in found if (meta(pod).get("labels") or {}).get(COMPONENT_LABEL) == component]
    return tuple(_pod(pod, port, path) for pod in sorted(found, key=lambda pod: str(meta(pod)["name"])))


def _made_by(deployment: str, pod: Object) -> bool:
    """Whether a ReplicaSet of that Deployment controls the pod: its name is the Deployment's with a hash."""
    owners = [owner for owner in meta(pod).get("ownerReferences") or () if owner.get("controller")]
    return any(
        (owner.get("kind"), str(owner.get("name")).rpartition("-")[0]) == ("ReplicaSet", deployment) for owner in owners
    )


def _pod(pod: Object, port: int, path: str) -> ScaledPod:
    status = pod.get("status") or {}
    address = status.get("podIP")
    host = f"[{address}]" if address and ":" in address else address
    annotations = meta(pod).get("annotations") or {}
    scheme = "https" if annotations.get(SERVES_TLS) == "true" else "http"
    return ScaledPod(
        str(meta(pod)["name"]),
        f"{scheme}://{host}:{port}{path}" if host else None,
        ready=_condition(status, "Ready"),
        starting=not _condition(status, "Ready") and _starts(status),
        cost=annotations.get(DELETION_COST),
    )


def _condition(status: Object, name: str) -> bool:
    return any(one.get("type") == name and one.get("status") == "True" for one in status.get("conditions") or ())


def _starts(status: Object) -> bool:
    if status.get("phase") in ("Failed", "Succeeded") or not _condition(status, "PodScheduled"):
        return False
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return all(_is_starting(container) for container in containers)


def _is_starting(container: Any) -> bool:
    waiting = (container.get("state") or {}).get("waiting") or {}
    return not container.get("restartCount") and waiting.get("reason", "") in _STARTING_REASONS
