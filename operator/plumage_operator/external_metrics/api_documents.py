"""Documents of the API `external.metrics.k8s.io/v1beta1`: discovery, values, refusals, and label selectors. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from plumage.cluster import POOL_LABEL
from plumage.errors import ConfigurationError
from plumage_operator.external_metrics.pool_metrics import METRICS, PoolSample, current_values

__all__ = [
    "GROUP",
    "LONGEST",
    "VERSION",
    "LabelPredicate",
    "api_group",
    "api_group_list",
    "labels_of_pool",
    "parse_selector",
    "resource_list",
    "status",
    "value_list",
]

GROUP: Final = "external.metrics.k8s.io"

VERSION: Final = "v1beta1"

_GROUP_VERSION: Final = f"{GROUP}/{VERSION}"

_WINDOW: Final = 60  # seconds of rates and percentiles


def api_group() -> dict[str, Any]:
    """`/apis/external.metrics.k8s.io`"""
    version = {"groupVersion": _GROUP_VERSION, "version": VERSION}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version}


def api_group_list() -> dict[str, Any]:
    """`/apis`"""
    group = {name: value for name, value in api_group().items() if name not in ("kind", "apiVersion")}
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}


def resource_list() -> dict[str, Any]:
    """`/apis/external.metrics.k8s.io/v1beta1`: the API server requests it to check that the server works."""
    resources = [
        {"name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        for name in METRICS
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": _GROUP_VERSION, "resources": resources}


def labels_of_pool(sample: PoolSample) -> dict[str, str]:
    """The labels for a HorizontalPodAutoscaler's `metric.selector`."""
    return {"pool": sample.pool, POOL_LABEL: sample.pool}


def value_list(samples: Iterable[PoolSample], metric: str, selects: LabelPredicate, now: float) -> dict[str, Any]:
    """A metric's values, one for each pool. Pools without a value are absent."""
    items = []
    for sample in samples:
        labels = labels_of_pool(sample)
        value = current_values(sample, now).get(metric) if selects(labels) else None
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
    """An error in the API server's format."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


LabelPredicate: TypeAlias = Callable[[Mapping[str, str]], bool]

LONGEST: Final = 4096

_NAME = r"[A-Za-z0-9](?:[-_./A-Za-z0-9]*[A-Za-z0-9])?"

_VALUE = r"(?:[A-Za-z0-9](?:[-_.A-Za-z0-9]*[A-Za-z0-9])?)?"

_PARTS: Final = re.compile(r",(?![^(]*\))")  # commas outside of parentheses

_EQUALITY: Final = re.compile(rf"({_NAME})\s*(==|=|!=)\s*({_VALUE})")

_SET: Final = re.compile(rf"({_NAME})\s+(in|notin)\s*\(([^()]*)\)")

_EXISTS: Final = re.compile(rf"(!?)\s*({_NAME})")


def parse_selector(text: str) -> LabelPredicate:
    """A predicate on labels; an empty selector selects all. Raises ConfigurationError with what can't be parsed."""
    if len(text) > LONGEST:
        raise ConfigurationError(f"a label selector may have {LONGEST} characters, this one has {len(text)}")
    tests = [_requirement(part.strip()) for part in _PARTS.split(text)] if text.strip() else []
    return lambda labels: all(test(labels) for test in tests)


def _requirement(part: str) -> LabelPredicate:
    if found := _EQUALITY.fullmatch(part):
        name, operator, value = found.groups()
        return _among(name, frozenset({value}), negated=operator == "!=")
    if found := _SET.fullmatch(part):
        name, operator, listed = found.groups()
        values = frozenset(value.strip() for value in listed.split(","))
        return _among(name, values, negated=operator == "notin")
    if found := _EXISTS.fullmatch(part):
        absent, name = found.groups()
        return (lambda labels: name not in labels) if absent else (lambda labels: name in labels)
    raise ConfigurationError(f"a label selector has forms such as pool=chat or pool in (a,b), not {part!r}")


def _among(name: str, values: frozenset[str], *, negated: bool) -> LabelPredicate:
    if negated:  # as in Kubernetes: a missing label equals nothing
        return lambda labels: labels.get(name) not in values
    return lambda labels: labels.get(name) in values
