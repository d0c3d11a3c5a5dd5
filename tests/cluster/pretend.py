"""Nodes and pods that are objects only: a whole control plane with its scheduler, and kwok where kubelets would be.

Pods are scheduled as anywhere, and kwok makes each Ready at once: thousands fit on one machine, and nothing of them
runs. Without kwok a placed pod stays Pending, which is enough to see where it would go, and why it can not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cluster import programs
from cluster.api_only import ApiServer, api_server
from cluster.errors import ClusterError
from cluster.node import scheduler_command

__all__ = ["PODS", "add_nodes", "node", "pretended"]

PODS: Final = "198.18.0.0/16"
"""Addresses of pods. kwok gives them out; whoever wants to be reached there sees to it."""
_KUBELETS: Final = "kwok"
_STAGES: Final = Path(__file__).parent / "manifests" / "kwok.yaml"
_PROGRAMS: Final = {program.name: program for program in programs.NODES}
# Nodes whose leases come late on a busy machine, or never, are not lost.
_PATIENT: Final = ("--node-monitor-grace-period=1800s", "--node-startup-grace-period=1800s")
_LEASE_SECONDS: Final = 40
_MOST_PODS: Final = 250


@contextmanager
def pretended(more: Mapping[str, tuple[str, ...]] | None = None, *, kubelets: bool = True) -> Iterator[ApiServer]:
    """Control plane and scheduler, and kwok unless no `kubelets` are wanted; no node yet. more: further flags, by
    program. Raises `NotHereError`."""
    found = programs.required(_PROGRAMS[name] for name in ("kube-scheduler", *([_KUBELETS] if kubelets else [])))
    flags = {**(more or {}), "controllers": (*_PATIENT, *(more or {}).get("controllers", ()))}
    with api_server(flags) as server:
        server.processes.start("scheduler", scheduler_command(replace(server.plane, programs=found)))
        if kubelets:
            server.processes.start(_KUBELETS, _kwok(found[_KUBELETS], server.kubeconfig))
        yield server


def _kwok(program: Path, kubeconfig: Path) -> list[str]:
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--config={_STAGES}",
        "--manage-all-nodes",
        f"--cidr={PODS}",
        "--node-ip=127.0.0.1",
        f"--node-lease-duration-seconds={_LEASE_SECONDS}",
    ]


def node(
    name: str,
    *,
    extra: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """A Node that is Ready with room for much. extra: further resources that it advertises, such as nvidia.com/gpu."""
    room = {"cpu": "1k", "memory": "4Ti", "ephemeral-storage": "4Ti", "pods": str(_MOST_PODS), **(extra or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": [*taints]},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Pretended", "message": "an object only"}],
        },
    }


def add_nodes(server: ApiServer, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Makes them, with their status, as kubelets do that register. Raises `ClusterError` with what kubectl says."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*nodes]})
    made = server.kubectl("create", "--validate=false", "-f", "-", stdin=text, check=False)
    if made.returncode:
        raise ClusterError(f"nodes: {made.stderr.strip()}")
