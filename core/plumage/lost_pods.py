"""Pods on nodes that stopped reporting, recognized by the pod alone (decision 0190). Pure.

The node lifecycle controller sets Ready to False and leaves ContainersReady, which only the kubelet writes
(kubernetes/pkg/controller/util/node, `MarkPodsNotReady`). With a kubelet that reports, the two differ only for a
readiness gate. So nobody needs a right to read nodes. A pod that was not ready before has no such mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["condition_status", "is_lost"]

Pod = Mapping[str, Any]
"""A pod as the API server returns it."""


def is_lost(pod: Pod) -> bool:
    """Whether the control plane took away the pod's readiness because its node stopped reporting."""
    if (pod.get("status") or {}).get("reason") == "NodeLost":  # control planes that do not evict by taints
        return True
    marked = condition_status(pod, "Ready") == "False" and condition_status(pod, "ContainersReady") == "True"
    return marked and not _waits_for_a_gate(pod)


def condition_status(pod: Pod, kind: str) -> str | None:
    """The status of the pod's condition of this type; None without one."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((str(one.get("status")) for one in conditions if one.get("type") == kind), None)


def _waits_for_a_gate(pod: Pod) -> bool:
    gates = (pod.get("spec") or {}).get("readinessGates") or ()
    return any(condition_status(pod, str(gate.get("conditionType"))) != "True" for gate in gates)
