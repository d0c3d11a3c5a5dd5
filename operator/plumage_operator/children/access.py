"""Who a pod is, what it may ask the API server, and who may reach it."""

from __future__ import annotations

from typing import Any

from plumage.cluster import AGENT_PORT, DIRECTORY_PORT, ENGINE_PORT, ROUTER_METRICS_PORT, ROUTER_PORT, Component
from plumage_operator.children.scene import Child, GatewayScene, Owner, Scene

__all__ = ["build_account", "build_budget", "build_gateway_policy", "build_network_policy", "build_router_binding"]


def build_account(owner: Owner, component: Component) -> Child:
    """No token is mounted by itself."""
    return owner.child("v1", "ServiceAccount", component, {"automountServiceAccountToken": False})


def build_router_binding(owner: Owner, component: Component) -> Child:
    """Routers read the EndpointSlices of their namespace. The role comes with the chart."""
    subject = {"kind": "ServiceAccount", "name": owner.name(component), "namespace": owner.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": owner.site.router_role}
    body = {"roleRef": role, "subjects": [subject]}
    return owner.child("rbac.authorization.k8s.io/v1", "RoleBinding", component, body)


def build_budget(owner: Owner, component: Component) -> Child:
    """One at a time: a drained node waits until the next replica is warm. (`minAvailable` would never let a single
    replica go.) A pod that is not ready may always go: by Kubernetes' own default a pool that is broken would keep its
    nodes from being drained for good."""
    selector = {"matchLabels": owner.selector(component)}
    spec = {"maxUnavailable": 1, "selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    return owner.child("policy/v1", "PodDisruptionBudget", component, {"spec": spec})


def build_network_policy(scene: Scene, component: Component) -> Child:
    """What may come in; going out is left open, since models are fetched from anywhere."""
    rules = {"engine": _engine_rules, "router": _router_rules, "directory": _directory_rules}[component]
    return _policy(scene, component, rules(scene))


def build_gateway_policy(scene: GatewayScene) -> Child:
    """The gateway's door is everybody's: its spec names no namespaces."""
    scrapers = [_rule([*map(_namespace, sorted(set(scene.site.monitoring)))], ROUTER_METRICS_PORT)]
    return _policy(scene, "gateway", [_rule([], ROUTER_PORT), *(scrapers if scene.site.monitoring else ())])


def _policy(owner: Owner, component: Component, ingress: list[dict[str, Any]]) -> Child:
    spec = {
        "podSelector": {"matchLabels": owner.selector(component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return owner.child("networking.k8s.io/v1", "NetworkPolicy", component, {"spec": spec})


def _engine_rules(scene: Scene) -> list[dict[str, Any]]:
    return [
        _rule([_routers(scene)], ENGINE_PORT),
        _rule([_own(scene, "engine"), _operator(scene)], AGENT_PORT),
        *_monitoring(scene, ENGINE_PORT, AGENT_PORT),
    ]


def _router_rules(scene: Scene) -> list[dict[str, Any]]:
    """The pool's door: everybody's, unless namespaces are named."""
    namespaces = scene.pool.spec.network_policy.client_namespaces
    if not namespaces:
        return [_rule([], ROUTER_PORT), *_monitoring(scene, ROUTER_METRICS_PORT)]
    clients = [*map(_namespace, namespaces), _operator(scene)]
    return [_rule(clients, ROUTER_PORT), *_monitoring(scene, ROUTER_METRICS_PORT)]


def _directory_rules(scene: Scene) -> list[dict[str, Any]]:
    return [_rule([_own(scene, "engine"), _routers(scene)], DIRECTORY_PORT)]


def _monitoring(scene: Scene, *ports: int) -> list[dict[str, Any]]:
    told = (*scene.pool.spec.network_policy.monitoring_namespaces, *scene.site.monitoring)
    namespaces = sorted(set(told))
    return [_rule([*map(_namespace, namespaces)], *ports)] if namespaces else []


def _rule(peers: list[dict[str, Any]], *ports: int) -> dict[str, Any]:
    allowed = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return {"from": peers, **allowed} if peers else allowed


def _own(scene: Scene, component: Component) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": scene.selector(component)}}


def _routers(scene: Scene) -> dict[str, Any]:
    """The pool's own, or its gateway's."""
    return {"podSelector": {"matchLabels": scene.router_selector}}


def _operator(scene: Scene) -> dict[str, Any]:
    return _namespace(scene.site.namespace)


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
