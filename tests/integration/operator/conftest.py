"""One API server and one operator for all tests here; each test has a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.audit import Audit
from support.kube import served
from support.operator_fleet import USER, Fleet

_LAST = "test_permissions_in_use.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the check of all requests of the operator after the other tests here."""
    items.sort(
        key=lambda item: item.path == Path(__file__).parent / _LAST
    )  # a stable sort: the others keep their order


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """The operator's requests to the API server."""
    return Audit(tmp_path_factory.mktemp("audit"), USER)


@pytest.fixture(scope="session")
def api_server(audit: Audit) -> Iterator[Any]:
    with served(*audit.flags) as server:
        yield server


@pytest.fixture(scope="session")
def fleet(api_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with one running operator."""
    fleet = Fleet(api_server, tmp_path_factory.mktemp("operator"))
    fleet.install()
    fleet.start()
    yield fleet
    for name in list(fleet.operators):
        fleet.stop(name, kill=True)


@pytest.fixture
def namespace(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own."""
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:50].rstrip("-")
    fleet.kubectl("create", "namespace", name)
    yield name
    fleet.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
