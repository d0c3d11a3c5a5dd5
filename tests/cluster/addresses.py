"""The address plan of a cluster's own network. It uses documentation and benchmark ranges, and no address leads out of
it."""

from __future__ import annotations

from typing import Final

__all__ = ["API_PORT", "DNS", "DOMAIN", "MOST_NODES", "PODS", "SERVICES", "node_ip", "pod_cidr"]

API_PORT: Final = 6443
MOST_NODES: Final = 200
PODS: Final = "198.18.0.0/16"
SERVICES: Final = "198.19.0.0/20"
DNS: Final = "198.19.0.10"
DOMAIN: Final = "cluster.local"


def node_ip(number: int) -> str:
    """The address of node `number`, which counts from 1. Node 1 has the control plane's address too."""
    return f"192.0.2.{number}"


def pod_cidr(number: int) -> str:
    return f"198.18.{number}.0/24"
