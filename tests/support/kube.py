"""A real API server for a test session, or the word that this machine has none (tests/cluster has the rest)."""

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
    """etcd, kube-apiserver and kube-controller-manager: ready in about a second, one for the session, gone after it.

    Shared: a test makes a namespace of its own, and removes what is cluster-wide when it ends.
    """
    with served() as server:
        yield server


@contextmanager
def served(*flags: str) -> Iterator[ApiServer]:
    """One with further flags of kube-apiserver."""
    # Here, since tests/vllm's environment lacks what it imports.
    from cluster import api_only
    from cluster.errors import NotHereError

    with ExitStack() as stack:
        try:
            server = stack.enter_context(api_only.api_server({"apiserver": flags}))
        except NotHereError as error:
            missing("an API server's programs", str(error))
        yield server
