"""PodMonitors: which ports of a component Prometheus scrapes. Pure."""

from __future__ import annotations

import re
from typing import Final

from plumage.cluster import COMPONENT_LABEL, POOL_LABEL, Component, selector_of
from plumage_operator.resources.context import Child, PoolContext

__all__ = ["build_monitor"]

# The chart's alerts and dashboard group by these labels.
_RELABELINGS: Final = [
    {"sourceLabels": [f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9]', '_', label)}"], "targetLabel": name}
    for label, name in ((POOL_LABEL, "pool"), (COMPONENT_LABEL, "component"))
]


def build_monitor(context: PoolContext, component: Component) -> Child:
    """A PodMonitor of one component's pods."""
    monitoring = context.pool.spec.monitoring
    ports = ("http", "agent") if component == "engine" else ("metrics",)
    endpoint = {"path": "/metrics", "interval": f"{monitoring.interval_seconds}s", "relabelings": _RELABELINGS}
    spec = {
        "selector": {"matchLabels": selector_of(context.pool.metadata.name, component)},
        "podMetricsEndpoints": [{"port": port, **endpoint} for port in ports],
    }
    return context.child("monitoring.coreos.com/v1", "PodMonitor", component, {"spec": spec}, labels=monitoring.labels)
