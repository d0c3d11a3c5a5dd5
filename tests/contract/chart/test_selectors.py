"""The chart's NetworkPolicy and PodMonitor select the pods that the operator makes, by labels that all of them have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.operator_world import CONFIG, pool_object

from plumage.api.v1alpha1 import InferenceGateway, parse_kept
from plumage_operator.resources import GatewayContext, PoolContext, ServedPool, build_children, build_gateway_children
from plumage_operator.resources.context import read_pool

SPOKEN_TO = {"chat-engine", "chat-router", "front-gateway"}


@pytest.fixture(scope="module")
def pods() -> dict[str, dict[str, str]]:
    """Pod labels of each Deployment of a pool with its own router and of a gateway."""
    found = {}
    for child in _children():
        if child["kind"] == "Deployment":
            found[child["metadata"]["name"]] = child["spec"]["template"]["metadata"]["labels"]
    assert found.keys() == SPOKEN_TO | {"chat-directory"}
    return found


def test_operator_may_reach_engines_and_every_kind_of_router(render: Any, pods: Mapping[str, Any]) -> None:
    egress = render({"networkPolicy": {"enabled": True}}).one("NetworkPolicy")["spec"]["egress"]
    (rule,) = [one for one in egress if any("podSelector" in peer for peer in one.get("to", ()))]
    (peer,) = rule["to"]
    assert peer["namespaceSelector"] == {}
    assert _chosen(peer["podSelector"], pods) == SPOKEN_TO
    assert {port["port"] for port in rule["ports"]} == {8000, 8081}


def test_all_pods_with_metrics_are_scraped(render: Any, pods: Mapping[str, Any]) -> None:
    monitor = render({"monitoring": {"podMonitor": {"enabled": True}}}).one("PodMonitor")
    assert _chosen(monitor["spec"]["selector"], pods) == SPOKEN_TO


def test_pods_of_others_are_not_selected(render: Any) -> None:
    theirs = {"web": {"app.kubernetes.io/component": "router", "app.kubernetes.io/managed-by": "Helm"}}
    monitor = render({"monitoring": {"podMonitor": {"enabled": True}}}).one("PodMonitor")
    assert _chosen(monitor["spec"]["selector"], theirs) == set()


def _children() -> Iterator[dict[str, Any]]:
    context = PoolContext(read_pool(pool_object()), CONFIG, 2)
    yield from build_children(context)
    spec = {"models": [{"name": "chat", "pools": [{"poolRef": {"name": "chat"}}]}]}
    gateway_object = {**pool_object(spec, name="front", uid="u"), "kind": "InferenceGateway"}
    gateway = parse_kept(gateway_object, "the gateway")
    assert isinstance(gateway, InferenceGateway)
    yield from build_gateway_children(GatewayContext(gateway, CONFIG, (ServedPool(context, ("chat",)),)))


def _chosen(selector: Mapping[str, Any], pods: Mapping[str, Mapping[str, str]]) -> set[str]:
    return {name for name, labels in pods.items() if _matches(selector, labels)}


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """As the API server matches selectors, for the operators that the chart uses."""
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return equal and all(_holds(one, labels) for one in selector.get("matchExpressions", ()))


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if expression["operator"] == "Exists":
        return expression["key"] in labels
    assert expression["operator"] == "In"
    return labels.get(expression["key"]) in expression["values"]
