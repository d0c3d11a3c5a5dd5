"""What holds for all tests: a busy machine is no failure, and what a machine lacks is said before a test starts."""

from __future__ import annotations

import gc
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings
from support.needs import directory_server

pytest_plugins = ["support.kube", "support.crds"]  # the fixtures `api_server` and `kinds`

# Real vLLM is in an environment of its own: scripts/test.sh runs these there, and says so where it can not.
_vllm = find_spec("vllm")  # without an origin it is this folder, seen as a namespace
collect_ignore = [] if _vllm is not None and _vllm.origin else ["vllm"]

# An example may take as long as the machine's other work makes it. All else stays as it is (in CI: derandomized).
settings.register_profile(
    "plumage",
    settings(),
    deadline=None,
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("plumage")


def pytest_collection_finish() -> None:
    """What was imported and collected is no garbage; looking through it takes a tenth of the unit tests' time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("redis") is not None:
        directory_server()
