"""One API server and one operator for all tests here; each test has a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.kube import api_server
from support.operator_fleet import Fleet

__all__ = ["api_server"]


@pytest.fixture(scope="session")
def fleet(api_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """With one operator running."""
    fleet = Fleet(api_server, tmp_path_factory.mktemp("operator"))
    fleet.install()
    fleet.start()
    yield fleet
    for name in list(fleet.operators):
        fleet.stop(name, kill=True)


@pytest.fixture
def namespace(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of the test's own."""
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:50].rstrip("-")
    fleet.kubectl("create", "namespace", name)
    yield name
    fleet.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
