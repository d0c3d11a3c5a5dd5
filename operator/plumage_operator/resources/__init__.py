"""A pool → its children, as plain objects. Pure: the same pool and site give the same objects, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plumage_operator.resources import directory, engine, gateway, router
from plumage_operator.resources.context import (
    APPLIED,
    CONFIG_HASH,
    Child,
    GatewayScene,
    Owner,
    Scene,
    Served,
    model_mistakes,
)
from plumage_operator.resources.network_access import (
    build_gateway_policy,
    build_http_route,
    build_ingress,
    build_monitor,
    build_network_policy,
)
from plumage_operator.resources.router import with_cordons
from plumage_operator.resources.settings import build_keys
from plumage_operator.resources.workload import build_account, build_budget, build_router_binding

__all__ = [
    "APPLIED",
    "CONFIG_HASH",
    "Child",
    "GatewayScene",
    "Owner",
    "Scene",
    "Served",
    "build_children",
    "build_gateway_children",
    "build_keys",
    "model_mistakes",
    "with_cordons",
]


def build_children(scene: Scene, cordoned: Sequence[str] = ()) -> tuple[Child, ...]:
    """In the order they are applied: what a pod needs before the pod, the directory before who uses it. A budget
    without pods is an event of the cluster's each time that it is looked at, so it comes last."""
    return (
        *_directory(scene),
        *_engine(scene),
        *_router(scene, cordoned),
    )


def build_gateway_children(scene: GatewayScene) -> tuple[Child, ...]:
    """As of a pool's router, of one that serves several pools."""
    policies = [build_gateway_policy(scene)] if scene.site.network_policies else []
    return (
        build_account(scene, "gateway"),
        build_router_binding(scene, "gateway"),
        *policies,
        gateway.build_config(scene),
        gateway.build_service(scene),
        gateway.build_deployment(scene),
        build_budget(scene, "gateway"),
    )


def _directory(scene: Scene) -> Iterator[Child]:
    if scene.pool.spec.directory.redis_ref is not None:
        return
    yield build_account(scene, "directory")
    if _policies(scene):
        yield build_network_policy(scene, "directory")
    yield directory.build_service(scene)
    yield directory.build_deployment(scene)


def _engine(scene: Scene) -> Iterator[Child]:
    yield build_account(scene, "engine")
    if _policies(scene):
        yield build_network_policy(scene, "engine")
    yield engine.build_config(scene)
    yield engine.build_service(scene)
    yield engine.build_deployment(scene)
    yield build_budget(scene, "engine")
    if scene.pool.spec.monitoring.enabled:
        yield build_monitor(scene, "engine")


def _router(scene: Scene, cordoned: Sequence[str]) -> Iterator[Child]:
    spec = scene.pool.spec.router
    if spec.gateway_ref is not None:
        return
    yield build_account(scene, "router")
    yield build_router_binding(scene, "router")
    if _policies(scene):
        yield build_network_policy(scene, "router")
    yield router.build_config(scene, cordoned)
    yield router.build_service(scene)
    yield router.build_deployment(scene)
    yield build_budget(scene, "router")
    if spec.ingress is not None:
        yield build_ingress(scene, spec.ingress)
    if spec.http_route is not None:
        yield build_http_route(scene, spec.http_route)
    if scene.pool.spec.monitoring.enabled:
        yield build_monitor(scene, "router")


def _policies(scene: Scene) -> bool:
    return scene.site.network_policies and scene.pool.spec.network_policy.enabled
