"""The sample configurations for other autoscalers, compared with the operator's real answers.

After a renamed key or metric, these autoscalers would stop scaling a pool without an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from cluster.errors import NotHereError
from cluster.kinds import KEDA_METRICS_API, SCALED_OBJECTS, Definition, definition
from support.autoscaling import KNEE, pool
from support.needs import missing

from plumage.api.v1alpha1 import Quantity
from plumage.autoscaling import CacheJudge
from plumage_operator.external_metrics import PoolSample, add_pool_page
from plumage_operator.external_metrics.api_documents import parse_selector, resource_list, value_list

if TYPE_CHECKING:
    from cluster.api_only import ApiServer

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "examples" / "autoscaling"
TOKENS, RUNNING = 4500.0, 3


def sample(name: str = "keda.yaml") -> dict[str, Any]:
    return dict(yaml.safe_load((SAMPLES / name).read_text()))


def fleet(namespace: str, name: str) -> PoolSample:
    """Three replicas with a low hit ratio. Every figure is known."""
    judge = CacheJudge(KNEE, 0.4, RUNNING, 1000.0)
    return PoolSample(namespace, name, pool([TOKENS / RUNNING] * RUNNING, ttft=0.9, queue_wait=0.3, waiting=2), judge)


def at(document: Any, location: str) -> Any:
    """KEDA's `valueLocation`: keys joined by dots."""
    for key in location.split("."):
        document = document[key]
    return document


TRIGGERS = sample()["spec"]["triggers"]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=[one["metadata"]["valueLocation"] for one in TRIGGERS])
async def test_keda_triggers_find_a_number_at_their_location(trigger: dict[str, Any]) -> None:
    assert trigger["type"] == "metrics-api"
    assert trigger["metadata"].get("format", "json") == "json"
    wanted = sample()
    app = web.Application()
    here = fleet(wanted["metadata"]["namespace"], wanted["spec"]["scaleTargetRef"]["name"])
    add_pool_page(app, lambda: [here, fleet("other", "other")], clock=lambda: 0.0)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get(urlsplit(trigger["metadata"]["url"]).path)
        assert answer.status == 200
        found = at(await answer.json(), trigger["metadata"]["valueLocation"])
    assert isinstance(found, int | float)
    assert not isinstance(found, bool)
    assert found > 0
    assert float(trigger["metadata"]["targetValue"]) > 0


def test_keda_asks_the_service_of_the_chart() -> None:
    rendered = yaml.safe_load_all((ROOT / "tests/contract/chart/snapshots/default.yaml").read_text())
    services = [one for one in rendered if one and one["kind"] == "Service"]
    offered = {
        f"{one['metadata']['name']}.{one['metadata']['namespace']}.svc:{port['port']}"
        for one in services
        for port in one["spec"]["ports"]
        if port["name"] == "metrics"
    }
    assert {urlsplit(one["metadata"]["url"]).netloc for one in TRIGGERS} == offered


def of_keda(wanted: Definition) -> Path:
    try:
        return definition(wanted)
    except NotHereError as error:
        missing("KEDA's own words", str(error))


@pytest.fixture(scope="module")
def keda(api_server: ApiServer) -> Iterator[ApiServer]:
    """An API server with KEDA's own definition of ScaledObject."""
    path = str(of_keda(SCALED_OBJECTS))
    with ExitStack() as stack:
        api_server.kubectl("apply", "--server-side", "-f", path)
        stack.callback(api_server.kubectl, "delete", "-f", path)
        api_server.established()
        yield api_server


def refusal(keda: ApiServer, scaled: dict[str, Any]) -> str:
    """The error of a strict create, or an empty string. Nothing is stored."""
    arguments = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    done = keda.kubectl(*arguments, stdin=json.dumps(scaled), check=False)
    return "" if done.returncode == 0 else str(done.stderr)


def test_keda_definition_accepts_the_sample_strictly(keda: ApiServer) -> None:
    assert refusal(keda, sample()) == ""
    wrong = sample()
    wrong["spec"]["pollingSeconds"] = 15
    assert 'unknown field "spec.pollingSeconds"' in refusal(keda, wrong)
    wrong = sample()
    wrong["spec"]["triggers"][0]["metadata"]["targetValue"] = 16
    assert "spec.triggers[0].metadata.targetValue" in refusal(keda, wrong)


def test_keda_knows_each_key_of_a_trigger() -> None:
    """Its definition allows any key there, and KEDA ignores a key that it does not know."""
    declared = re.findall(r'`keda:"name=(\w+),([^`]*)"`', of_keda(KEDA_METRICS_API).read_text())
    needed = {name for name, options in declared if "optional" not in options and "default=" not in options}
    assert needed == {"url", "valueLocation"}
    for trigger in TRIGGERS:
        assert needed <= set(trigger["metadata"]) <= {name for name, _ in declared}


METRICS = sample("hpa.yaml")["spec"]["metrics"]


@pytest.mark.parametrize("metric", METRICS, ids=[one["external"]["metric"]["name"] for one in METRICS])
def test_hpa_metrics_are_served_for_their_pool_alone(metric: dict[str, Any]) -> None:
    wanted, target = metric["external"]["metric"], metric["external"]["target"]
    assert wanted["name"] in [one["name"] for one in resource_list()["resources"]]
    asked = ",".join(f"{key}={value}" for key, value in wanted["selector"]["matchLabels"].items())
    name = sample("hpa.yaml")["spec"]["scaleTargetRef"]["name"]
    served = value_list([fleet("here", name), fleet("here", "other")], wanted["name"], parse_selector(asked), 0.0)
    (item,) = served["items"]
    assert item["metricLabels"]["pool"] == name
    assert float(Quantity(item["value"])) > 0
    assert float(Quantity(target["averageValue" if target["type"] == "AverageValue" else "value"])) > 0


def test_sums_have_a_target_per_replica_and_ratios_one_for_the_pool() -> None:
    """A ratio divided by the replicas would fall as the pool grows; an undivided sum would grow for ever."""
    hpa = {one["external"]["metric"]["name"]: one["external"]["target"]["type"] for one in METRICS}
    assert hpa == {"plumage_total_tokens_per_second": "AverageValue", "plumage_cache_miss_ratio_curable": "Value"}
    keda = {one["metadata"]["valueLocation"]: one["metricType"] for one in TRIGGERS}
    assert keda == {
        "requestsInFlight": "AverageValue",
        "cacheMissRatioCurable": "Value",
        "heldRequests": "AverageValue",
    }


@pytest.mark.parametrize("name", ["hpa.yaml", "keda.yaml"])
def test_scale_targets_can_be_scaled(name: str) -> None:
    reference = sample(name)["spec"]["scaleTargetRef"]
    (definition,) = (
        one
        for path in (ROOT / "crds").glob("*.yaml")
        if (one := yaml.safe_load(path.read_text()))["spec"]["names"]["kind"] == reference["kind"]
    )
    versions = {f"{definition['spec']['group']}/{one['name']}": one for one in definition["spec"]["versions"]}
    assert "scale" in versions[reference["apiVersion"]]["subresources"]
