"""What a pool's objects in a cluster are called: labels, names, ports, paths. Operator, router, agent and CLI read it
here, since they meet over the Kubernetes API only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

__all__ = [
    "AGENT_PORT",
    "AUDIENCE",
    "COMPONENT_LABEL",
    "CONFIG_FOLDER",
    "CORDON",
    "DIRECTORY_PORT",
    "ENDPOINT_PICKER_PORT",
    "ENGINE_PORT",
    "GATEWAY_LABEL",
    "GROUP",
    "LIVE_POOL_SETTINGS",
    "LIVE_ROUTER_SETTINGS",
    "LONGEST_POOL_NAME",
    "MANAGED_BY",
    "OURS",
    "OURS_SELECTOR",
    "PAUSE",
    "POOL_LABEL",
    "ROUTER_METRICS_PORT",
    "ROUTER_PORT",
    "RUN_FOLDER",
    "TOKEN_FOLDER",
    "VERSION",
    "Component",
    "child_name",
    "gateway_labels_of",
    "gateway_of",
    "gateway_selector_of",
    "labels_of",
    "picker_service",
    "pool_of",
    "selector_of",
]

GROUP: Final = "inference.plumage.dev"
VERSION: Final = "v1alpha1"
MANAGED_BY: Final = "plumage"

# By this the operator's watches find what is a pool's or a gateway's; which one's, the next two say.
OURS: Final = {"app.kubernetes.io/managed-by": MANAGED_BY}
OURS_SELECTOR: Final = ",".join(f"{key}={value}" for key, value in OURS.items())
POOL_LABEL: Final = f"{GROUP}/pool"
GATEWAY_LABEL: Final = f"{GROUP}/gateway"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
# Annotations that people set: on a pool, nothing is changed while it says "true"; on a pod, no new request goes there.
PAUSE: Final = f"{GROUP}/paused"
CORDON: Final = f"{GROUP}/cordoned"

ENGINE_PORT: Final = 8000
ROUTER_PORT: Final = 8000
ENDPOINT_PICKER_PORT: Final = 9002  # of routers whose pool has an endpoint picker
ROUTER_METRICS_PORT: Final = 8082  # of routers alone: where clients need keys, their own port does not serve metrics
AGENT_PORT: Final = 8081
DIRECTORY_PORT: Final = 6379

# In every pod: sockets between engine and agent, with the token that they share, on an emptyDir in memory; the
# ConfigMap's files; the projected service account token, by which pods of a pool know one another.
RUN_FOLDER: Final = "/run/plumage"
CONFIG_FOLDER: Final = "/etc/plumage"
TOKEN_FOLDER: Final = "/var/run/secrets/plumage"
AUDIENCE: Final = "plumage"

# Sections of a pool's configuration that a running router applies (plumage_router.process.config_watch).
LIVE_POOL_SETTINGS: Final = (
    "policy",
    "shadow_policy",
    "limits",
    "wait_queue",
    "timeouts",
    "breaker",
    "quarantine",
    "quotas",
    "flow_control",
    "allowed_request_fields",
    "sort_tools",
)
LIVE_ROUTER_SETTINGS: Final = (*LIVE_POOL_SETTINGS, "tracing")
"""Those of the router of one pool."""

Component = Literal["engine", "router", "directory", "gateway"]
# A Service's name is a DNS label of at most 63 characters, and the longest suffix is "-directory".
LONGEST_POOL_NAME: Final = 63 - len("-directory")


def child_name(owner: str, component: Component) -> str:
    """The name of a pool's Deployment, Service, ConfigMap and service account of one part; or of a gateway's, whose one
    part is called so too."""
    return f"{owner}-{component}"


def picker_service(pool: str) -> str:
    """The name of the Service by which proxies reach the endpoint picker of a pool's routers."""
    return f"{pool}-picker"


def selector_of(pool: str, component: Component) -> dict[str, str]:
    """The labels that choose one part's pods; they never change."""
    return {POOL_LABEL: pool, COMPONENT_LABEL: component}


def labels_of(pool: str, component: Component) -> dict[str, str]:
    """All labels of one part's objects."""
    return {
        "app.kubernetes.io/name": "plumage",
        "app.kubernetes.io/instance": pool,
        **OURS,
        **selector_of(pool, component),
    }


def gateway_selector_of(gateway: str) -> dict[str, str]:
    """The labels that choose a gateway's routers; they never change."""
    return {GATEWAY_LABEL: gateway, COMPONENT_LABEL: "gateway"}


def gateway_labels_of(gateway: str) -> dict[str, str]:
    """All labels of a gateway's objects."""
    own = {"app.kubernetes.io/name": "plumage", "app.kubernetes.io/instance": gateway}
    return {**own, **OURS, **gateway_selector_of(gateway)}


def pool_of(labels: Mapping[str, str]) -> str | None:
    """The pool that an object belongs to, by its labels."""
    return labels.get(POOL_LABEL)


def gateway_of(labels: Mapping[str, str]) -> str | None:
    """The gateway that an object belongs to, by its labels."""
    return labels.get(GATEWAY_LABEL)
