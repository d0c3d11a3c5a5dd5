"""What the operator may do in a cluster: the one list that the chart's roles are made from and tests run it under.

Of Secrets it may create new ones, for a pool's own keys, and has no other verb on them: pods mount them. A child is
first made by `create`, so that an object of somebody else's is never taken over; `get` is asked before it is changed,
by server-side apply, which is `patch`; `list` and `watch` keep the operator's picture.
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
    Rule("monitoring.coreos.com", ("podmonitors",), _CHILD),
    Rule("networking.k8s.io", ("ingresses", "networkpolicies"), _CHILD),
    Rule("policy", ("poddisruptionbudgets",), _CHILD),
    Rule("rbac.authorization.k8s.io", ("rolebindings",), _CHILD),
    Rule("rbac.authorization.k8s.io", ("clusterroles",), ("bind",), (ROUTER_ROLE,)),
    Rule("", ("pods",), ("list", "patch", "watch")),
    Rule("", ("events",), ("create", "list", "patch")),
)
"""Wherever pools are: in the whole cluster, or in each watched namespace."""

IN_SYSTEM: Final = (
    Rule("coordination.k8s.io", ("leases",), ("create",)),
    Rule("coordination.k8s.io", ("leases",), ("get", "update"), (LEASE,)),
)
"""In the operator's own namespace: who of several operators is the active one."""
