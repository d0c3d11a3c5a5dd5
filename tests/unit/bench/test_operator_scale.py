"""What `bench operator-scale` applies, and how it reads the results."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from support.operator_world import World
from support.ports import free_ports

from plumage.api.v1alpha1 import parse_pool
from plumage.fleet_report import read_agent_report, read_router_report
from plumage_bench.benches.operator_scale import objects, pods
from plumage_bench.benches.operator_scale.audit import OPERATOR, POLICY, by_verb, idle_writes, read_entries
from plumage_bench.benches.operator_scale.network import unshare_command
from plumage_bench.benches.operator_scale.process import figures_of, peak_megabytes, processor_seconds
from plumage_operator.autoscaling.pool_load import ReportWindow
from plumage_operator.observability.metrics import Metrics


def line(user: str, verb: str, resource: str, second: int) -> str:
    at = f"2026-01-01T00:00:{second:02d}.500000Z"
    about = {"user": {"username": user}, "objectRef": {"resource": resource}}
    return json.dumps({"kind": "Event", "stageTimestamp": at, "verb": verb, **about})


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    def written(*lines: str) -> Path:
        path = tmp_path / "audit.log"
        path.write_text("\n".join(lines))
        return path

    return written


def test_idle_writes_are_those_of_the_operator_and_all_to_pools_and_children(log) -> None:
    entries = list(
        read_entries(
            log(
                line(OPERATOR, "patch", "deployments", 1),
                line("admin", "update", "services", 2),
                line(OPERATOR, "create", "events", 3),
                line("admin", "create", "replicasets", 3),  # no child of a pool
                line(OPERATOR, "update", "leases", 4),
                line(OPERATOR, "list", "pods", 5),
                line(OPERATOR, "patch", "inferencepools", 30),  # later
                "",
            )
        )
    )
    began = entries[0].at
    assert idle_writes(entries, began, began + 10) == {"patch deployments": 1, "update services": 1, "create events": 1}
    assert by_verb(entries, began, began + 10) == {"patch": 1, "create": 1, "update": 1, "list": 1}


def test_unfinished_line_is_left_out(log) -> None:
    whole = line(OPERATOR, "patch", "deployments", 1)
    assert len(list(read_entries(log(whole, whole[:40])))) == 1


def test_requests_without_an_object_are_read(log) -> None:
    entry = {"stageTimestamp": "2026-01-01T00:00:00.000000Z", "verb": "get", "user": {"username": "admin"}}
    assert [one.resource for one in read_entries(log(json.dumps(entry), ""))] == [""]


def test_audit_policy_logs_the_operator_first() -> None:
    rules = yaml.safe_load(POLICY)["rules"]
    assert rules[0] == {"level": "Metadata", "users": [OPERATOR]}


def test_pool_has_the_requested_pods() -> None:
    wanted = sum(child["spec"]["replicas"] for child in objects.deployments(7))
    assert wanted == objects.PODS_A_POOL
    assert parse_pool(objects.pool(7), "the pool").metadata.namespace in objects.NAMESPACES


def test_plain_deployments_have_no_owner_and_no_account() -> None:
    for child in objects.deployments(0):
        assert "ownerReferences" not in child["metadata"]
        assert child["spec"]["template"]["spec"]["serviceAccountName"] == "default"


def test_pool_is_settled_once_all_its_conditions_say_so() -> None:
    world = World()
    world.pool["spec"] = objects.pool(0)["spec"]
    seen: list[bool] = []
    for ready in (0, objects.ENGINES):
        for _ in range(3):
            world.do(world.plan())
            for thing in world.objects.values():
                if thing["kind"] == "Deployment":
                    wanted = thing["spec"]["replicas"]
                    counts = {"replicas": wanted, "updatedReplicas": wanted, "readyReplicas": min(ready, wanted)}
                    thing["status"] = {**counts, "observedGeneration": thing["metadata"].get("generation", 1)}
        seen.append(objects.is_settled(world.pool))
    assert seen == [False, True]
    world.pool["metadata"]["generation"] += 1
    assert not objects.is_settled(world.pool)


def test_deployment_is_complete_once_all_its_pods_are_ready() -> None:
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 2)
    thing: dict[str, Any] = {"metadata": {"generation": 1}, "spec": {"replicas": 2}}
    assert not objects.is_complete(thing)
    assert objects.is_complete({**thing, "status": {**counts, "observedGeneration": 1}})
    assert not objects.is_complete({**thing, "status": {**counts, "availableReplicas": 1, "observedGeneration": 1}})


def test_metrics_of_the_operator_are_read() -> None:
    metrics = Metrics()
    metrics.leading = True
    for milliseconds in range(1, 101):
        metrics.observe(milliseconds / 1000)
    figures = figures_of(metrics.page(pools=3, waiting=2, oldest=0.0))
    assert (figures.leading, figures.pools, figures.waiting, figures.looks.count) == (True, 3, 2, 100)
    assert 0.05 < figures.p99 <= 0.1


def test_memory_and_time_of_a_process_are_read() -> None:
    assert 10 < peak_megabytes(os.getpid()) < 10_000
    assert processor_seconds({"me": os.getpid()})["me"] > 0


def test_answers_are_reports_that_the_operator_reads() -> None:
    assert read_agent_report(msgspec.json.encode(pods.agent_report())).hotness > 0
    assert read_router_report(msgspec.json.encode(pods.router_report())).curve.as_curve().hits[-1] > 0.9


def test_idle_fleet_reports_no_change() -> None:
    seen: ReportWindow[Any] = ReportWindow()
    for now in (100.0, 160.0):
        seen.add(pods.router_report(), now)
    assert seen.gained(lambda report: report.prompt_tokens) == 0


def test_one_connection_serves_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, router = free_ports(2)
    monkeypatch.setattr(pods, "AGENT_PORT", agent)
    monkeypatch.setattr(pods, "ROUTER_PORT", router)

    async def asked() -> list[bytes]:
        servers = await pods.listen()
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
                answers = []
                for port in (agent, agent, router):
                    async with session.get(f"http://127.0.0.1:{port}/v1/plumage/stats") as answer:
                        answers.append(await answer.read())
                return answers
        finally:
            for server in servers:
                server.close()
                await server.wait_closed()

    first, second, third = asyncio.run(asked())
    assert first == second
    assert read_router_report(third).router == "router"


def test_unprivileged_user_becomes_root_in_a_network_namespace() -> None:
    assert unshare_command(0) == ["unshare", "--net", "--"]
    assert re.search("--map-root-user", " ".join(unshare_command(1000)))
