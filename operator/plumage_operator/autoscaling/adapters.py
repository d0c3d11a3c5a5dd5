"""Which ready replicas serve each LoRA adapter of a pool, by the reports of their agents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from plumage.fleet_report import AdapterReport, AgentReport
from plumage_operator.autoscaling.pods import ScaledPod
from plumage_operator.autoscaling.pool_load import ReportWindow

__all__ = ["adapter_fields", "some_are_missing"]

_NAMED: Final = 3  # replicas in a message
_LONGEST: Final = 200  # characters of a cause


def adapter_fields(
    names: Sequence[str], pods: Iterable[ScaledPod], agents: Mapping[str, ReportWindow[AgentReport]]
) -> dict[str, Any]:
    """The status field `adapters`, for adapters of these names; nothing without adapters, or while no agent of a ready
    replica has reported on them."""
    found = {pod.name: _reports(agents.get(pod.name)) for pod in pods if pod.ready}
    known = [(name, reports) for name, reports in found.items() if reports is not None]
    if not names or not known:
        return {}
    return {"adapters": [_status(name, known) for name in names]}


def some_are_missing(fields: Mapping[str, Any]) -> bool:
    """Whether a ready replica lacks an adapter."""
    return any(one["message"] for one in fields.get("adapters", ()))


def _reports(window: ReportWindow[AgentReport] | None) -> dict[str, AdapterReport] | None:
    """By name; None where the agent has not reported, or is of a version that reports none."""
    last = window.last if window is not None else None
    return None if last is None or last.adapters is None else {one.name: one for one in last.adapters}


def _status(name: str, known: Sequence[tuple[str, Mapping[str, AdapterReport]]]) -> dict[str, Any]:
    """Agents learn of a new adapter within a minute; until then they do not report on it."""
    found = [(pod, reports.get(name, AdapterReport(name, "Loading"))) for pod, reports in known]
    lacking = [(pod, report) for pod, report in found if report.state != "Loaded"]
    return {
        "name": name,
        "replicas": len(found) - len(lacking),
        "failedReplicas": sum(report.state == "Failed" for _, report in lacking),
        "message": "; ".join(_causes(lacking)),
    }


def _causes(lacking: Sequence[tuple[str, AdapterReport]]) -> Iterator[str]:
    """Failures first."""
    ordered = sorted(lacking, key=lambda one: (one[1].state != "Failed", one[0]))
    for pod, report in ordered[:_NAMED]:
        yield f"{pod}: {(report.message or report.state.lower())[:_LONGEST]}"
    if len(ordered) > _NAMED:
        yield f"{len(ordered) - _NAMED} more"
