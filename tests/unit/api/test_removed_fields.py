"""Removed fields: a manifest that sets one is refused, not accepted without effect."""

from __future__ import annotations

from typing import Any

import pytest
from support.manifest_mistakes import gateway, pool, put

from plumage.api.v1alpha1 import parse_manifest
from plumage.errors import ManifestError


def mistakes(document: dict[str, Any], path: str, value: Any) -> list[str]:
    put(path, value)(document)
    with pytest.raises(ManifestError) as caught:
        parse_manifest(document, "test")
    return caught.value.mistakes


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec.router.slo", {"ttftMilliseconds": 500}), ("spec.directory.warmup.salted", True)],
)
def test_pool_field_without_reader_is_refused(path: str, value: Any) -> None:
    [mistake] = mistakes(pool(), path, value)
    assert mistake.startswith(f"{path}: may not be set: there is no such field")


@pytest.mark.parametrize(
    ("path", "value", "at"),
    [
        ("spec.flowControl", {"maxQueued": 10}, ".maxQueued"),
        ("spec.flowControl", {"maxQueueSeconds": 10}, ".maxQueueSeconds"),
        ("spec.flowControl", {"fairness": "None"}, ".fairness"),
        ("spec.flowControl", {"priorities": [{"name": "gold"}]}, ".priorities"),
        ("spec.listeners", [{"name": "tls", "port": 443, "protocol": "HTTPS"}], "[0].protocol"),
        ("spec.service", {"port": 9000}, ".port"),
    ],
)
def test_gateway_field_without_reader_is_refused(path: str, value: Any, at: str) -> None:
    [mistake] = mistakes(gateway(), path, value)
    assert mistake.startswith(f"{path}{at}: may not be set: there is no such field")
