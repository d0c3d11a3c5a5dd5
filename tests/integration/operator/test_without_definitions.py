"""An operator that starts before its CRDs reports that, is not ready, and works once they exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.kube import served
from support.operator_fleet import Fleet, made, pool

pytestmark = pytest.mark.api_server  # a cluster of its own


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Fleet]:
    """A cluster of its own without the CRDs, and an operator in it."""
    with served() as server:
        fleet = Fleet(server, tmp_path)
        fleet.install(define=False)
        fleet.start()
        yield fleet
        for name in list(fleet.operators):
            fleet.stop(name, kill=True)


def answer(fleet: Fleet, path: str) -> tuple[int, str]:
    """Status and text; 0 while the operator starts."""
    try:
        found = httpx.get(f"http://127.0.0.1:{fleet.ports['first'][0]}{path}", timeout=10.0)
    except httpx.TransportError:
        return 0, ""
    return found.status_code, found.text


def test_operator_without_definitions_names_command(bare: Fleet) -> None:
    bare.until(lambda: answer(bare, "/readyz")[0] == 503)
    for output in (answer(bare, "/readyz")[1], bare.log()):
        assert "no definition of inferencegateways.inference.plumage.dev and inferencepools" in output
        assert "kubectl apply --server-side -f crds/" in output
    assert answer(bare, "/healthz")[0] == 200, "a restart would cure nothing"

    bare.define()
    bare.kubectl("create", "namespace", "late")
    bare.kubectl("-n", "late", "apply", "-f", "-", stdin=pool())
    bare.until(lambda: answer(bare, "/readyz") == (200, "ok"))
    assert made(bare, "late")
