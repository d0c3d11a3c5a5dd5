"""The operator's rights in a cluster. The chart's roles are generated from this list, and tests run with exactly it.
Pure.

The operator may create Secrets for the keys of pools, and has no other verb on Secrets: pods mount them. It makes a
child with `create`, which never takes over another owner's object. Before it changes a child by server-side apply
(`patch`), it reads it with `get`. The cache needs `list` and `watch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from plumage.cluster import GROUP

__all__ = ["IN_POOLS", "IN_SYSTEM", "LEASE", "ROUTER_ROLE", "Rule"]

LEASE: Final = "plumage-operator"
ROUTER_ROLE: Final = "plumage-router"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a Role or ClusterRole."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()


_CHILD = ("create", "delete", "get", "list", "patch", "watch")

IN_POOLS: Final = (
    Rule(GROUP, ("inferencegateways", "inferencepools"), ("list", "watch")),
    Rule(GROUP, ("inferencegateways/status", "inferencepools/status"), ("patch",)),
    Rule("", ("configmaps", "serviceaccounts", "services"), _CHILD),
    Rule("", ("secrets",), ("create",)),
    Rule("apps", ("deployments",), _CHILD),
    Rule("gateway.networking.k8s.io", ("httproutes",), _CHILD),
    Rule("inference.networking.k8s.io", ("inferencepools",), _CHILD),
    Rule("monitoring.coreos.com", ("podmonitors",), _CHILD),
    Rule("networking.k8s.io", ("ingresses", "networkpolicies"), _CHILD),
    Rule("policy", ("poddisruptionbudgets",), _CHILD),
    Rule("rbac.authorization.k8s.io", ("rolebindings",), _CHILD),
    Rule("rbac.authorization.k8s.io", ("clusterroles",), ("bind",), (ROUTER_ROLE,)),
    Rule("", ("pods",), ("list", "patch", "watch")),
    Rule("", ("events",), ("create", "list", "patch")),
)
"""Where pools are: in the whole cluster, or in each watched namespace."""

IN_SYSTEM: Final = (
    Rule("coordination.k8s.io", ("leases",), ("create",)),
    Rule("coordination.k8s.io", ("leases",), ("get", "update"), (LEASE,)),
)
"""In the operator's own namespace: the Lease of the leader election."""
