"""PodMonitors: which ports of a component Prometheus scrapes. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from plumage.cluster import COMPONENT_LABEL, POOL_LABEL, Component, selector_of
from plumage_operator.resources import settings
from plumage_operator.resources.context import Child, PoolContext
from plumage_operator.resources.engine import engine_port_name

__all__ = ["build_monitor"]

# The chart's alerts and dashboard group by these labels.
_RELABELINGS: Final = [
    {"sourceLabels": [f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9]', '_', label)}"], "targetLabel": name}
    for label, name in ((POOL_LABEL, "pool"), (COMPONENT_LABEL, "component"))
]


def build_monitor(context: PoolContext, component: Component) -> Child:
    """A PodMonitor of one component's pods."""
    monitoring = context.pool.spec.monitoring
    endpoint = {"path": "/metrics", "interval": f"{monitoring.interval_seconds}s", "relabelings": _RELABELINGS}
    ports = [_engine_port(context), {"port": "agent"}] if component == "engine" else [{"port": "metrics"}]
    spec = {
        "selector": {"matchLabels": selector_of(context.pool.metadata.name, component)},
        "podMetricsEndpoints": [{**port, **endpoint} for port in ports],
    }
    return context.child("monitoring.coreos.com/v1", "PodMonitor", component, {"spec": spec}, labels=monitoring.labels)


def _engine_port(context: PoolContext) -> dict[str, Any]:
    """Builds the port of engines. With TLS, Prometheus verifies them as routers do, by the Secrets."""
    port, tls, trust = engine_port_name(context), context.pool.spec.engine.tls, settings.engine_tls(context)
    if tls is None or trust is None:
        return {"port": port}
    verified: dict[str, Any] = {
        "ca": {"secret": {"name": tls.secret_name, "key": "ca.crt"}},
        "serverName": trust.server_name,
    }
    if tls.client_secret_name is not None:
        verified["cert"] = {"secret": {"name": tls.client_secret_name, "key": "tls.crt"}}
        verified["keySecret"] = {"name": tls.client_secret_name, "key": "tls.key"}
    return {"port": port, "scheme": "https", "tlsConfig": verified}
