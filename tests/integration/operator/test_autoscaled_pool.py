"""An autoscaled pool with a real operator, API server, Deployment and ReplicaSet controller. No program runs in its
pods: see `reporting_pods`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.operator_fleet import condition, events, made, pool
from support.operator_lives import lives
from support.reporting_pods import Reports, engines, keep_ready

SPEC = """
  autoscaling:
    minReplicas: 3
    maxReplicas: 6
    metrics: [{type: TotalTokensPerSecond, target: 100}]
    behavior:
      scaleDown:
        stabilizationWindowSeconds: 0
        policies: [{type: Pods, value: 3, periodSeconds: 15}]
"""


@pytest.fixture
def reports() -> Iterator[Reports]:
    found = Reports()
    yield found
    found.close()


@pytest.mark.timeout(400)
def test_pool_grows_by_tokens_and_deletes_coldest_replicas(fleet, namespace, reports) -> None:
    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(SPEC))
    made(fleet, namespace)

    def size(replicas: int) -> bool:
        keep_ready(fleet, namespace, reports)
        return len(engines(fleet, namespace)) == replicas

    fleet.until(lambda: size(3))
    fleet.until(lambda: condition(fleet, namespace, "EngineReady").get("status") == "True")
    reports.set_rate(250.0)
    fleet.until(lambda: len(engines(fleet, namespace)) == 6)  # the new ones load the model
    fleet.until(lambda: fleet.get(namespace, "ppool", "chat")["status"]["desiredReplicas"] == 6)
    assert condition(fleet, namespace, "EngineReady")["status"] == "True"
    assert fleet.get(namespace, "ppool", "chat")["status"]["provenReplicas"] == 3
    fleet.until(lambda: size(6))
    fleet.until(lambda: condition(fleet, namespace, "Progressing").get("reason") == "Settled")
    assert "provenReplicas" not in fleet.get(namespace, "ppool", "chat")["status"]
    status = fleet.get(namespace, "ppool", "chat")["status"]
    assert status["desiredReplicas"] == 6
    assert "TotalTokensPerSecond" in status["autoscaling"]["decision"]
    assert condition(fleet, namespace, "Scaling")["status"] == "True"
    assert any(reason == "ScaledUp" and "→" in said for reason, said in events(fleet, namespace))

    keep_ready(fleet, namespace, reports)
    hottest = sorted(engines(fleet, namespace), key=reports.hotness)[3:]
    reports.set_rate(1.0)
    fleet.until(lambda: not size(6))  # once the last minute is quiet, it shrinks as its rate falls, in steps or at once
    fleet.until(lambda: size(3))
    assert sorted(engines(fleet, namespace)) == sorted(hottest)
    assert any(reason == "ScaledDown" for reason, _ in events(fleet, namespace))


@pytest.mark.timeout(400)
def test_scale_down_cut_after_each_action_deletes_coldest(fleet, namespace, reports, tmp_path) -> None:
    """Each restarted operator gathers figures, decides and then does one more action: a deletion cost, the smaller
    Deployment, the status."""
    six = SPEC.replace("minReplicas: 3", "minReplicas: 6")
    alone = {"PLUMAGE_WATCH_NAMESPACES": namespace, "PLUMAGE_AUTOSCALE_SECONDS": "1"}
    record: Path = tmp_path / "lives"

    def size(replicas: int) -> bool:
        keep_ready(fleet, namespace, reports)
        return len(engines(fleet, namespace)) == replicas

    def settled() -> bool:
        return size(3) and fleet.get(namespace, "ppool", "chat")["status"]["desiredReplicas"] == 3

    fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(six))
    fleet.until(lambda: size(6))
    keep_ready(fleet, namespace, reports)
    hottest = sorted(engines(fleet, namespace), key=reports.hotness)[3:]
    for name in list(fleet.operators):
        fleet.stop(name)
    try:
        fleet.kubectl("-n", namespace, "apply", "-f", "-", stdin=pool(SPEC))
        fleet.start("often", lives=record, **alone)
        fleet.until(settled)
        fleet.stop("often", kill=True)
        cuts = [life[-1].partition(" ")[0] for life in lives(record)]
        changes = [what for what in cuts if what in ("Annotate", "Apply")]
        assert changes[-4:] == ["Annotate", "Annotate", "Annotate", "Apply"], lives(record)
        assert cuts[-1] == "WriteStatus"
        fleet.start("often", **alone)
        fleet.until(lambda: condition(fleet, namespace, "Scaling").get("reason") == "AtTarget")
        assert settled()
        assert sorted(engines(fleet, namespace)) == sorted(hottest)
    finally:
        for name in list(fleet.operators):
            fleet.stop(name, kill=True)
        fleet.start()
