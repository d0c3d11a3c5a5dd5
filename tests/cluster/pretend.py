"""Nodes and pods that are objects only: a whole control plane with its scheduler, and kwok instead of kubelets.

The scheduler places pods as usual, and kwok makes each Ready at once. No container runs, so thousands of pods fit on
one machine. Without kwok a placed pod stays Pending, which is enough to test where it would run and why it can not.
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
"""Addresses of pods, which kwok assigns. A test that needs an answer from one must serve it."""
_KUBELETS: Final = "kwok"
_STAGES: Final = Path(__file__).parent / "manifests" / "kwok.yaml"
_PROGRAMS: Final = {program.name: program for program in programs.NODES}
# On a busy machine leases may be late or missing; such nodes must not count as lost.
_PATIENT: Final = ("--node-monitor-grace-period=1800s", "--node-startup-grace-period=1800s")
_LEASE_SECONDS: Final = 40
_MOST_PODS: Final = 250


@contextmanager
def pretended(more: Mapping[str, tuple[str, ...]] | None = None, *, kubelets: bool = True) -> Iterator[ApiServer]:
    """Control plane and scheduler, and kwok unless `kubelets` is false; it has no node yet. more: further flags, by
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
    """A Ready Node with large capacity. extra: further resources that it advertises, such as nvidia.com/gpu."""
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
    """Makes the nodes, with the status that a kubelet writes when it registers. Raises `ClusterError` with kubectl's
    message."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*nodes]})
    made = server.kubectl("create", "--validate=false", "-f", "-", stdin=text, check=False)
    if made.returncode:
        raise ClusterError(f"nodes: {made.stderr.strip()}")
