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
from cluster.node import scheduler_command

__all__ = ["KUBELETS", "PODS", "add_nodes", "node", "pretended", "start_kubelets", "start_scheduler"]

PODS: Final = "198.18.0.0/16"
"""Addresses of pods. kwok gives them out; whoever wants to be reached there sees to it."""
KUBELETS: Final = "kwok"
_STAGES: Final = Path(__file__).parent / "manifests" / "kwok.yaml"
_PROGRAMS: Final = {program.name: program for program in programs.NODES}
# Nodes whose leases come late on a busy machine are not lost.
_PATIENT: Final = ("--node-monitor-grace-period=300s",)
_LEASE_SECONDS: Final = 40
_MOST_PODS: Final = 250


@contextmanager
def pretended(more: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[ApiServer]:
    """Control plane, scheduler and kwok, without a node yet. more: further flags, by program. Raises `NotHereError`."""
    programs.required(_PROGRAMS[name] for name in ("kube-scheduler", KUBELETS))
    flags = {**(more or {}), "controllers": (*_PATIENT, *(more or {}).get("controllers", ()))}
    with api_server(flags) as server:
        start_scheduler(server)
        start_kubelets(server)
        yield server


def start_scheduler(server: ApiServer) -> None:
    """Raises `NotHereError` where this machine has none."""
    name = "kube-scheduler"
    found = programs.required([_PROGRAMS[name]])
    server.processes.start("scheduler", scheduler_command(replace(server.plane, programs=found)))


def start_kubelets(server: ApiServer) -> None:
    """kwok, for all nodes."""
    found = programs.required([_PROGRAMS[KUBELETS]])
    command = [
        str(found[KUBELETS]),
        f"--kubeconfig={server.kubeconfig}",
        f"--config={_STAGES}",
        "--manage-all-nodes",
        f"--cidr={PODS}",
        "--node-ip=127.0.0.1",
        f"--node-lease-duration-seconds={_LEASE_SECONDS}",
    ]
    server.processes.start(KUBELETS, command)


def node(
    name: str, *, pods: int = _MOST_PODS, extra: Mapping[str, str] | None = None, **metadata: Any
) -> dict[str, Any]:
    """A Node that is Ready with room for much. extra: further resources that it advertises, such as nvidia.com/gpu."""
    room = {"cpu": "1k", "memory": "4Ti", "ephemeral-storage": "4Ti", "pods": str(pods), **(extra or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **metadata},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Pretended", "message": "an object only"}],
        },
    }


def add_nodes(server: ApiServer, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Makes them, with their status, which is a subresource."""
    listed: Sequence[Mapping[str, Any]] = [*nodes]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": listed})
    server.kubectl("create", "-f", "-", stdin=text)
    server.kubectl("apply", "--server-side", "--subresource=status", "--force-conflicts", "-f", "-", stdin=text)
