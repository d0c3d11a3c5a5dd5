"""Sums of what tenants used, and the records that are made of them."""

from __future__ import annotations

from typing import Any

import pytest

from plumage_router.proxy.tenant_usage import TenantUsage, TokensUsed
from plumage_router.proxy.usage_log import UsageLog

ONE = TokensUsed(prompt=100, cached=64, output=3, estimated=False)
CUT = TokensUsed(prompt=90, cached=0, output=7, estimated=True)


class Written:
    """What a log wrote. room: the records that it takes before it refuses."""

    def __init__(self, usage: TenantUsage, room: int = 100) -> None:
        self.room = room
        self.dropped = 0
        self.records: list[dict[str, Any]] = []
        self.log = UsageLog(usage, self, wall=lambda: 1.5, pool="chat", router="r-1")

    def close(self) -> None:
        pass

    def offer(self, record: dict[str, Any]) -> bool:
        if self.room:
            self.room -= 1
            self.records.append(record)
            return True
        return False

    def sums(self) -> dict[tuple[str, str], int]:
        sums: dict[tuple[str, str], int] = {}
        for record in self.records:
            key = (record["tenant"], record["model"])
            sums[key] = sums.get(key, 0) + record["promptTokens"]
        return sums


def test_record_has_what_was_used_since_the_one_before() -> None:
    usage = TenantUsage()
    written = Written(usage)
    written.log.finish()
    assert written.records == []
    usage.add("alice", "tiny", ONE)
    written.log.finish()
    usage.add("alice", "tiny", ONE)
    usage.add("alice", "tiny", CUT)
    written.log.finish()
    written.log.finish()
    common = {"log": "usage", "time": "1970-01-01T00:00:01.500+00:00", "pool": "chat", "router": "r-1",
              "tenant": "alice", "model": "tiny"}  # fmt: skip
    assert written.records == [
        common | {"sequence": 1, "requests": 1, "estimatedRequests": 0, "promptTokens": 100, "cachedTokens": 64,
                  "outputTokens": 3},
        common | {"sequence": 2, "requests": 2, "estimatedRequests": 1, "promptTokens": 190, "cachedTokens": 64,
                  "outputTokens": 10},
    ]  # fmt: skip


@pytest.mark.parametrize("room", [0, 1, 2])
def test_refused_record_is_in_the_next(room: int) -> None:
    usage = TenantUsage()
    written = Written(usage, room)
    for tenant in ("alice", "bob", "carol"):
        usage.add(tenant, "tiny", ONE)
    assert written.log.finish() == 3 - room
    assert len(written.records) == room
    usage.add("alice", "tiny", ONE)
    written.room = 100
    written.log.finish()
    assert written.sums() == {("alice", "tiny"): 200, ("bob", "tiny"): 100, ("carol", "tiny"): 100}
    assert [record["sequence"] for record in written.records] == list(range(1, len(written.records) + 1))


def test_further_tenants_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage_router.proxy.tenant_usage.MAX_PAIRS", 2)
    usage = TenantUsage()
    for tenant in ("alice", "bob", "carol", "dave", "alice"):
        usage.add(tenant, "tiny", ONE)
    requests = {pair: sums.requests for pair, sums in usage.sums.items()}
    assert requests == {("alice", "tiny"): 2, ("bob", "tiny"): 1, ("*", "*"): 2}


def test_many_records_are_made_in_slices() -> None:
    usage = TenantUsage()
    written = Written(usage, 1_000)
    for number in range(450):
        usage.add(f"t{number}", "tiny", ONE)
    assert [len(written.records) for _ in written.log.write()] == [200, 400]
    assert len(written.records) == 450
    usage.add("t7", "tiny", ONE)
    written.log.finish()
    assert [record["tenant"] for record in written.records[450:]] == ["t7"]


def test_metrics_show_so_many_pairs_and_the_rest_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage_router.proxy.tenant_usage.MAX_SHOWN", 1)
    usage = TenantUsage()
    for tenant in ("alice", "bob", "carol"):
        usage.add(tenant, "tiny", ONE)
    lines = [line for line in usage.lines() if line.startswith("plumage_router_tenant_prompt_tokens_total")]
    assert [line.partition("{")[2] for line in lines] == [
        'tenant="*",model="*"} 200',
        'tenant="alice",model="tiny"} 100',
    ]


def test_metrics_name_tenant_and_model() -> None:
    usage = TenantUsage()
    usage.add('a"b', "tiny", CUT)
    lines = list(usage.lines())
    assert 'plumage_router_tenant_prompt_tokens_total{tenant="a\\"b",model="tiny"} 90' in lines
    assert 'plumage_router_tenant_estimated_requests_total{tenant="a\\"b",model="tiny"} 1' in lines
