"""Which ready replicas serve each LoRA adapter of a pool, by the reports of their agents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from plumage.fleet_report import AdapterReport, AgentReport, source_digest
from plumage_operator.autoscaling.pods import ScaledPod
from plumage_operator.autoscaling.pool_load import ReportWindow

__all__ = ["adapter_fields", "some_are_missing"]

_NAMED: Final = 3  # replicas in a message
_LONGEST: Final = 200  # characters of a cause


def adapter_fields(
    sources: Mapping[str, str], pods: Iterable[ScaledPod], agents: Mapping[str, ReportWindow[AgentReport]]
) -> dict[str, Any]:
    """The status field `adapters`; nothing without adapters or without a ready replica.

    sources: by the adapter's name, the folder or repository that agents get. A report about another source is
    older than the manifest.
    """
    found = [(pod.name, _reports(agents.get(pod.name))) for pod in pods if pod.ready]
    if not sources or not found:
        return {}
    return {"adapters": [_status(name, source_digest(source), found) for name, source in sources.items()]}


def some_are_missing(fields: Mapping[str, Any]) -> bool:
    """Whether a ready replica lacks an adapter."""
    return any(one["message"] for one in fields.get("adapters", ()))


def _reports(window: ReportWindow[AgentReport] | None) -> dict[str, AdapterReport] | None:
    """Returns the reports by name; None where the agent has not reported, or is of a version that reports none."""
    last = window.last if window is not None else None
    return None if last is None or last.adapters is None else {one.name: one for one in last.adapters}


def _status(name: str, source: str, found: Sequence[tuple[str, Mapping[str, AdapterReport] | None]]) -> dict[str, Any]:
    states = [(pod, _state(name, source, reports)) for pod, reports in found]
    lacking = [(pod, report) for pod, report in states if report.state != "Loaded"]
    return {
        "name": name,
        "replicas": len(states) - len(lacking),
        "failedReplicas": sum(report.state == "Failed" for _, report in lacking),
        "message": "; ".join(_causes(lacking)),
    }


def _state(name: str, source: str, reports: Mapping[str, AdapterReport] | None) -> AdapterReport:
    """Agents learn of a new adapter within a minute; until then they do not report on it."""
    if reports is None:
        return AdapterReport(name, "Unknown", "no report on its adapters")
    report = reports.get(name)
    return report if report is not None and report.source == source else AdapterReport(name, "Loading")


def _causes(lacking: Sequence[tuple[str, AdapterReport]]) -> Iterator[str]:
    """Failures first."""
    ordered = sorted(lacking, key=lambda one: (one[1].state != "Failed", one[0]))
    for pod, report in ordered[:_NAMED]:
        yield f"{pod}: {(report.message or report.state.lower())[:_LONGEST]}"
    if len(ordered) > _NAMED:
        yield f"{len(ordered) - _NAMED} more"
