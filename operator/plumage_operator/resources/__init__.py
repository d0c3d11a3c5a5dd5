"""A pool's or gateway's children, as plain objects. Pure: equal input gives equal objects, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plumage_operator.resources import directory, engine, gateway, router
from plumage_operator.resources.context import (
    APPLIED,
    CONFIG_HASH,
    Child,
    ChildOwner,
    GatewayContext,
    PoolContext,
    ServedPool,
    model_mistakes,
)
from plumage_operator.resources.exposure import build_http_route, build_ingress
from plumage_operator.resources.external_engines import build_external_service
from plumage_operator.resources.network_policy import build_gateway_policy, build_network_policy
from plumage_operator.resources.pod_monitor import build_monitor
from plumage_operator.resources.published_pool import build_published_pool
from plumage_operator.resources.router import config_with_cordons
from plumage_operator.resources.settings import build_key_secret
from plumage_operator.resources.workload import build_account, build_budget, build_router_binding

__all__ = [
    "APPLIED",
    "CONFIG_HASH",
    "Child",
    "ChildOwner",
    "GatewayContext",
    "PoolContext",
    "ServedPool",
    "build_children",
    "build_gateway_children",
    "build_key_secret",
    "config_with_cordons",
    "model_mistakes",
]


def build_children(context: PoolContext, cordoned: Sequence[str] = ()) -> tuple[Child, ...]:
    """All children of a pool, in the order in which they are applied.

    What a pod needs comes before the pod, and the directory before its users. A disruption budget without pods causes
    an event at each check of Kubernetes, so budgets come last.

    cordoned: names of the replicas that people cordoned.
    """
    return (
        *_directory(context),
        *_engine(context),
        *_router(context, cordoned),
    )


def build_gateway_children(context: GatewayContext) -> tuple[Child, ...]:
    """All children of a gateway. They are those of a pool's router, but one router serves several pools."""
    policies = [build_gateway_policy(context)] if context.config.network_policies else []
    return (
        build_account(context, "gateway"),
        build_router_binding(context, "gateway"),
        *policies,
        gateway.build_config(context),
        gateway.build_service(context),
        gateway.build_deployment(context),
        build_budget(context, "gateway"),
    )


def _directory(context: PoolContext) -> Iterator[Child]:
    if context.pool.spec.directory.redis_ref is not None:
        return
    yield build_account(context, "directory")
    if _wants_policies(context):
        yield build_network_policy(context, "directory")
    yield directory.build_service(context)
    yield directory.build_deployment(context)


def _engine(context: PoolContext) -> Iterator[Child]:
    if context.pool.spec.engine.external is not None:
        if context.external is not None:
            yield build_external_service(context, context.external)
        return
    yield build_account(context, "engine")
    if _wants_policies(context):
        yield build_network_policy(context, "engine")
    yield engine.build_config(context)
    yield engine.build_service(context)
    yield engine.build_deployment(context)
    yield build_budget(context, "engine")
    if context.pool.spec.monitoring.enabled:
        yield build_monitor(context, "engine")


def _router(context: PoolContext, cordoned: Sequence[str]) -> Iterator[Child]:
    spec = context.pool.spec.router
    if spec.gateway_ref is not None:
        return
    yield build_account(context, "router")
    yield build_router_binding(context, "router")
    if _wants_policies(context):
        yield build_network_policy(context, "router")
    yield router.build_config(context, cordoned)
    yield router.build_service(context)
    if spec.endpoint_picker is not None:
        yield router.build_picker_service(context, spec.endpoint_picker)
    yield router.build_deployment(context)
    yield build_budget(context, "router")
    if spec.ingress is not None:
        yield build_ingress(context, spec.ingress)
    if spec.http_route is not None:
        yield build_http_route(context, spec.http_route)
    if spec.endpoint_picker is not None and spec.endpoint_picker.inference_pool is not None:
        yield build_published_pool(context, spec.endpoint_picker, spec.endpoint_picker.inference_pool)
    if context.pool.spec.monitoring.enabled:
        yield build_monitor(context, "router")


def _wants_policies(context: PoolContext) -> bool:
    return context.config.network_policies and context.pool.spec.network_policy.enabled
