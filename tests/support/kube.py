"""A real API server for a test session, or a skip where this machine can not run one. tests/cluster has the parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from support.needs import missing

if TYPE_CHECKING:
    from cluster.api_only import ApiServer

__all__ = ["api_server", "served"]


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """etcd, kube-apiserver and kube-controller-manager: ready in about a second, one for the session.

    The server is shared. A test makes a namespace of its own, and removes its cluster-wide objects at its end.
    """
    with served() as server:
        yield server


@contextmanager
def served(*flags: str) -> Iterator[ApiServer]:
    """An API server with further flags of kube-apiserver."""
    # Imported here, since the environment of tests/vllm lacks what it imports.
    from cluster import api_only
    from cluster.errors import NotHereError

    with ExitStack() as stack:
        try:
            server = stack.enter_context(api_only.api_server({"apiserver": flags}))
        except NotHereError as error:
            missing("an API server's programs", str(error))
        yield server
