"""The external metrics for other autoscalers: figures, selectors, documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from support.autoscaling import KNEE, pool

from plumage.autoscaling import CacheJudge, PoolLoad
from plumage.errors import ConfigurationError
from plumage_operator.external_metrics import FrontProxy, PoolSample, add_pool_page, read_front_proxy
from plumage_operator.external_metrics.api_documents import parse_selector, resource_list, value_list
from plumage_operator.external_metrics.pool_metrics import METRICS, current_values


def sample(load: PoolLoad, judge: CacheJudge | None = None) -> PoolSample:
    return PoolSample("models", "chat", load, judge)


def test_miss_ratio_counts_only_misses_that_more_cache_would_avoid() -> None:
    def cure(measured: float, replicas: int) -> float:
        judge = CacheJudge(KNEE, measured, replicas, 1000.0)
        return current_values(sample(pool([1.0] * replicas), judge), 0.0)["plumage_cache_miss_ratio_curable"]

    assert cure(0.4, 2) == pytest.approx(0.4)  # twice the cache has 80 %
    assert cure(0.6, 3) == pytest.approx(0.2)
    assert cure(0.8, 4) == 0.0  # the plateau, although a fifth still misses
    assert cure(0.8, 40) == 0.0


def test_unsettled_ratio_is_replaced_by_the_previous_one() -> None:
    judge = CacheJudge(KNEE, 0.4, 2, 1000.0)
    assert current_values(sample(pool([1.0] * 3), judge), 0.0)["plumage_cache_miss_ratio_curable"] == pytest.approx(0.2)


def test_amounts_are_sums_of_the_pool_without_requests_held_back() -> None:
    load = pool([1500.0, 2500.0], ttft=0.9, queue_wait=0.3, held_back=0.1, waiting=3, queued=20)
    changes = {"held_back": 500.0, "output_tokens_per_second": 50.0}
    load = replace(load, replicas=tuple(replace(one, **changes) for one in load.replicas))
    found = current_values(sample(load), 0.0)
    assert found["plumage_total_tokens_per_second"] == 4000.0
    assert found["plumage_output_tokens_per_second"] == 100.0
    assert found["plumage_requests_in_flight"] == 3020.0
    assert found["plumage_time_to_first_token_seconds"] == pytest.approx(0.8)
    assert found["plumage_queue_wait_seconds"] == pytest.approx(0.2)
    assert found["plumage_held_requests"] == 3


def test_partial_sums_and_stale_figures_are_not_reported() -> None:
    assert "plumage_total_tokens_per_second" not in current_values(sample(pool([1500.0, None])), 0.0)
    judge = CacheJudge(KNEE, 0.4, 2, 1000.0)
    assert current_values(sample(pool([1500.0] * 2, ttft=0.1), judge), 46.0) == {}


def test_idle_pool_has_no_waiting_time() -> None:
    found = current_values(sample(pool([0.0], arrivals=0, in_flight=0)), 0.0)
    assert found["plumage_queue_wait_seconds"] == 0.0
    assert "plumage_queue_wait_seconds" not in current_values(sample(pool([0.0])), 0.0)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", True),
        ("pool=chat", True),
        ("pool==chat", True),
        ("pool = chat , tier = gold", True),
        ("pool=code", False),
        ("pool!=code", True),
        ("absent!=code", True),
        ("pool in (code,chat)", True),
        ("pool in (code, mail),tier=gold", False),
        ("pool notin (code)", True),
        ("tier", True),
        ("absent", False),
        ("!absent", True),
        ("!tier", False),
        ("inference.plumage.dev/pool=chat", True),
    ],
)
def test_selectors_choose_a_pool(selector: str, selected: bool) -> None:
    labels = {"pool": "chat", "tier": "gold", "inference.plumage.dev/pool": "chat"}
    assert parse_selector(selector)(labels) is selected


@pytest.mark.parametrize("selector", ["pool=chat=x", "pool in chat", "=chat", "pool>5", "a," * 3000, "pool=ch at"])
def test_invalid_selectors_are_refused(selector: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_selector(selector)


def test_documents_have_the_api_form() -> None:
    listed = resource_list()
    assert {one["name"] for one in listed["resources"]} == set(METRICS)
    document = value_list([sample(pool([0.5]))], "plumage_total_tokens_per_second", parse_selector("pool=chat"), 0.0)
    assert document["items"] == [
        {
            "metricName": "plumage_total_tokens_per_second",
            "metricLabels": {"pool": "chat", "inference.plumage.dev/pool": "chat"},
            "timestamp": "1970-01-01T00:00:00Z",
            "windowSeconds": 60,
            "value": "500m",
        }
    ]


class KubeClient:
    def __init__(self, data: dict[str, str]) -> None:
        self.data = data

    async def request(self, method: str, path: str) -> dict[str, Any]:
        assert (method, path.rsplit("/", 1)[1]) == ("GET", "extension-apiserver-authentication")
        return {"data": self.data}


async def test_access_is_checked() -> None:
    data = {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": '["front-proxy-client"]'}
    proxy = await read_front_proxy(KubeClient(data))
    assert proxy == FrontProxy("PEM", frozenset({"front-proxy-client"}))
    right = {"subject": ((("organizationName", "x"),), (("commonName", "front-proxy-client"),))}
    wrong = {"subject": ((("commonName", "somebody"),),)}
    assert [proxy.accepts(one) for one in (right, wrong, {}, None)] == [True, False, False, False]
    assert FrontProxy("PEM").accepts(wrong)


async def test_cluster_without_aggregation_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="no aggregation layer"):
        await read_front_proxy(KubeClient({}))


async def test_keda_document_has_the_figures() -> None:
    app = web.Application()
    add_pool_page(app, lambda: [sample(pool([10.0, 30.0], waiting=2))], clock=lambda: 0.0)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/v1/plumage/pools/models/chat")
        assert await answer.json() == {
            "pool": "chat",
            "wantedReplicas": 2,
            "totalTokensPerSecond": 40.0,
            "requestsInFlight": 40.0,
            "kvCacheUsageRatio": 0.2,
            "heldRequests": 2,
        }
        assert (await client.get("/v1/plumage/pools/models/other")).status == 404
