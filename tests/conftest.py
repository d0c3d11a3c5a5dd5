"""Settings of all tests: no deadline of an example, and a skip with its reason where this machine lacks a program."""

from __future__ import annotations

import gc
import os
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings
from support.needs import directory_server

pytest_plugins = ["support.kube", "support.crds"]  # the fixtures `api_server` and `kinds`

# Tests start kubectl and helm hundreds of times. Without most of their garbage collections each needs a sixth less CPU.
os.environ.setdefault("GOGC", "400")

# Real vLLM has its own environment: scripts/test.sh runs tests/vllm there.
_vllm = find_spec("vllm")  # a spec without an origin is this folder, found as a namespace package
collect_ignore = [] if _vllm is not None and _vllm.origin else ["vllm"]

# Whether the router's compiled modules run (scripts/compile_modules.py).
_ours = find_spec("plumage.routing.lbgr")
_compiled = _ours is not None and not (_ours.origin or "").endswith(".py")

# An example may take any time, since the machine has other work. Other settings keep their defaults.
settings.register_profile(
    "plumage",
    settings(),
    deadline=None,
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("plumage")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a Kubernetes API server; `-m "not api_server"` leaves them out."""
    for item in items:
        if "api_server" in getattr(item, "fixturenames", ()):
            item.add_marker("api_server")


def pytest_collection_finish() -> None:
    """Keep imported modules out of garbage collection, which would cost a tenth of the unit tests' time, and collect
    seldom: by default it took 20 of their 168 seconds of CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # objects; then generations


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _compiled and item.get_closest_marker("interpreted") is not None:
        pytest.skip("replaces or traces Python code, and the compiled modules run (make test-compiled)")
    if item.get_closest_marker("redis") is not None:
        directory_server()
