"""NetworkPolicies: who may connect to which port of a component. Pure."""

from __future__ import annotations

from typing import Any

from plumage.cluster import (
    AGENT_PORT,
    DIRECTORY_PORT,
    ENDPOINT_PICKER_PORT,
    ENGINE_PORT,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    Component,
)
from plumage_operator.resources.context import Child, ChildOwner, GatewayContext, PoolContext

__all__ = ["build_gateway_policy", "build_network_policy"]


def build_network_policy(context: PoolContext, component: Component) -> Child:
    """Limits ingress. Egress stays open, because models are fetched from anywhere."""
    rules = {"engine": _engine_rules, "router": _router_rules, "directory": _directory_rules}[component]
    return _policy(context, component, rules(context))


def build_gateway_policy(context: GatewayContext) -> Child:
    """A gateway's port is open to everybody: its spec names no namespaces."""
    scrapers = [_rule([*map(_namespace, sorted(set(context.config.monitoring)))], ROUTER_METRICS_PORT)]
    return _policy(context, "gateway", [_rule([], ROUTER_PORT), *(scrapers if context.config.monitoring else ())])


def _policy(owner: ChildOwner, component: Component, ingress: list[dict[str, Any]]) -> Child:
    spec = {
        "podSelector": {"matchLabels": owner.selector(component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return owner.child("networking.k8s.io/v1", "NetworkPolicy", component, {"spec": spec})


def _engine_rules(context: PoolContext) -> list[dict[str, Any]]:
    return [
        _rule([_routers(context)], ENGINE_PORT),
        *_proxies(context, ENGINE_PORT),
        _rule([_own(context, "engine"), _operator(context)], AGENT_PORT),
        *_monitoring(context, ENGINE_PORT, AGENT_PORT),
    ]


def _router_rules(context: PoolContext) -> list[dict[str, Any]]:
    """The pool's port is open to everybody, unless the spec names namespaces."""
    namespaces = context.pool.spec.network_policy.client_namespaces
    clients = [*map(_namespace, namespaces), _operator(context)] if namespaces else []
    return [
        _rule(clients, ROUTER_PORT),
        *_proxies(context, ENDPOINT_PICKER_PORT),
        *_monitoring(context, ROUTER_METRICS_PORT),
    ]


def _proxies(context: PoolContext, port: int) -> list[dict[str, Any]]:
    """Proxies ask the endpoint picker, and send the requests to the engines. The picker gives them the engine key, so
    nobody does by default."""
    picker = context.pool.spec.router.endpoint_picker
    if picker is None or not picker.proxy_namespaces:
        return []
    return [_rule([*map(_namespace, picker.proxy_namespaces)], port)]


def _directory_rules(context: PoolContext) -> list[dict[str, Any]]:
    return [_rule([_own(context, "engine"), _routers(context)], DIRECTORY_PORT)]


def _monitoring(context: PoolContext, *ports: int) -> list[dict[str, Any]]:
    spec = context.pool.spec.network_policy
    namespaces = sorted({*spec.monitoring_namespaces, *context.config.monitoring})
    return [_rule([*map(_namespace, namespaces)], *ports)] if namespaces else []


def _rule(peers: list[dict[str, Any]], *ports: int) -> dict[str, Any]:
    allowed = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return {"from": peers, **allowed} if peers else allowed


def _own(context: PoolContext, component: Component) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": context.selector(component)}}


def _routers(context: PoolContext) -> dict[str, Any]:
    """The pool's own routers, or its gateway's."""
    return {"podSelector": {"matchLabels": context.router_selector}}


def _operator(context: PoolContext) -> dict[str, Any]:
    return _namespace(context.config.namespace)


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
