"""The documents of the API `external.metrics.k8s.io/v1beta1`: discovery, values, refusals. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from plumage.cluster import POOL_LABEL
from plumage_operator.external_metrics.metrics import METRICS, PoolSample, figures
from plumage_operator.external_metrics.selector import Selects

__all__ = ["GROUP", "VERSION", "api_group", "api_group_list", "labels_of_pool", "resource_list", "status", "value_list"]

GROUP: Final = "external.metrics.k8s.io"
VERSION: Final = "v1beta1"
_GROUP_VERSION: Final = f"{GROUP}/{VERSION}"
_WINDOW: Final = 60  # seconds; of rates and percentiles


def api_group() -> dict[str, Any]:
    """`/apis/external.metrics.k8s.io`"""
    version = {"groupVersion": _GROUP_VERSION, "version": VERSION}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version}


def api_group_list() -> dict[str, Any]:
    """`/apis`"""
    group = {name: value for name, value in api_group().items() if name not in ("kind", "apiVersion")}
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}


def resource_list() -> dict[str, Any]:
    """`/apis/external.metrics.k8s.io/v1beta1`: the API server asks it to see whether we are there."""
    resources = [
        {"name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        for name in METRICS
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": _GROUP_VERSION, "resources": resources}


def labels_of_pool(sample: PoolSample) -> dict[str, str]:
    """What a HorizontalPodAutoscaler's `metric.selector` can select by."""
    return {"pool": sample.pool, POOL_LABEL: sample.pool}


def value_list(samples: Iterable[PoolSample], metric: str, chosen: Selects, now: float) -> dict[str, Any]:
    """A metric's values, one a pool; pools of which it is missing have none."""
    items = []
    for sample in samples:
        labels = labels_of_pool(sample)
        value = figures(sample, now).get(metric) if chosen(labels) else None
        if value is not None:
            items.append(_item(metric, labels, value, now))
    return {"kind": "ExternalMetricValueList", "apiVersion": _GROUP_VERSION, "metadata": {}, "items": items}


def _item(metric: str, labels: dict[str, str], value: float, now: float) -> dict[str, Any]:
    return {
        "metricName": metric,
        "metricLabels": labels,
        "timestamp": datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "windowSeconds": _WINDOW,
        "value": f"{round(value * 1000)}m",
    }


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """A refusal, as the API server's own."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
