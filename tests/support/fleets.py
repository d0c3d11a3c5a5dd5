"""A pool in a cluster as the operator's watches see it, and the reports of its processes."""

from __future__ import annotations

from typing import Any

from plumage.cluster import GROUP, labels_of
from plumage.fleet_report import AgentReport, CurvePoints, HistogramReport, RouterReport, WarmupReport
from plumage_operator.observed import Observed

START = 1_700_000_000.0


def pod(name: str, component: Any = "engine", *, ready: bool = True, address: str = "127.0.0.1", **status: Any) -> Any:
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "models",
            "labels": labels_of("chat", component),
            "annotations": {},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"chat-{component}-5d4f8", "controller": True}],
        },
        "status": {"phase": "Running", "podIP": address, "conditions": conditions, **status},
    }


def observed(spec: dict[str, Any], pods: list[Any], replicas: int, *, generation: int = 1, uid: str = "u1") -> Observed:
    """A pool of the simulator. The Deployment of its engines wants this many replicas."""
    manifest = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "chat", "namespace": "models", "uid": uid, "generation": generation},
        "spec": {"model": {"uri": "builtin://tiny-chat"}, "engine": {"runtime": "Simulator"}, **spec},
    }
    deployment = {"kind": "Deployment", "metadata": {"name": "chat-engine"}, "spec": {"replicas": replicas}}
    return Observed(manifest, {("Deployment", "chat-engine"): deployment}, tuple(pods))


def waits(short: int, long: int) -> HistogramReport:
    """A histogram with this many waits of 50 ms, and this many of half a second."""
    return HistogramReport([0.1, 1.0], [short, short + long, short + long], 0.05 * short + 0.5 * long)


def agent(name: str, at: float, tokens: int = 0, **more: Any) -> AgentReport:
    fields = {"warmup": WarmupReport("Warmed"), "cache_tokens": 1000, **more}
    return AgentReport(name, at=at, started=START, state="Ready", output_tokens=tokens, **fields)


def router(at: float, requests: int = 0, prompts: int = 0, cached: int = 0, **more: Any) -> RouterReport:
    fields = {"in_flight": 1, "curve": CurvePoints([0, 1000, 4000, 100_000], [0, 0.2, 0.8, 0.8], 1e6), **more}
    return RouterReport(
        "chat", "r", at=at, started=START, requests=requests, prompt_tokens=prompts, cached_tokens=cached, **fields
    )
