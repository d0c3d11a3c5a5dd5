"""The path of a chat request through the router's modules is the one that the architecture page shows."""

from __future__ import annotations

from typing import Any

import pytest
from support.module_path import Page, Trace, follow, page_of

MOST_MODULES, MOST_RETURNS = 15, 3
ROUTER = "router/plumage_router"
CLIENT, ENGINE = f"{ROUTER}/http/downstream.py:data_received", f"{ROUTER}/http/upstream.py:data_received"
STEPS = f"{ROUTER}/http/time_slicing.py"  # runs the steps of other modules

pytestmark = pytest.mark.interpreted


@pytest.fixture
def page() -> Page:
    return page_of("One request")


@pytest.fixture
async def trace(start: Any, kit: Any) -> Trace:
    """A streamed chat over a kept connection to the engine, with the default policy."""
    running = await start(engines=2, policy={"name": "Lbgr"})
    body = kit.chat("The same long beginning. " * 200, stream=True)
    for _ in range(4):
        assert (await running.post(body)).status == 200
    with follow({CLIENT, ENGINE}, (ROUTER,), ("core/plumage/",)) as trace:
        assert (await running.post(body)).status == 200
    assert set(trace.calls) == {CLIENT, ENGINE}, "the request and its answer"
    return trace


async def test_request_passes_the_modules_of_the_page(page: Page, trace: Trace) -> None:
    passed = [module for module in trace.modules() if module not in page.helpers]
    print(*passed, sep="\n")
    assert passed == page.modules
    assert page.entered == len(trace.modules()), "the page also has the number with helpers"
    assert len(passed) <= MOST_MODULES


async def test_request_returns_to_few_modules(page: Page, trace: Trace) -> None:
    returns = trace.returns(page.helpers)
    print(*returns, sep="\n")
    assert len(returns) <= MOST_RETURNS


async def test_helpers_call_no_module_of_the_path(page: Page, trace: Trace) -> None:
    """A helper that passes the request on would be a part of the path."""
    pairs = [pair for walk in trace.edges(set()).values() for pair in walk]
    assert [(a, b) for a, b in pairs if a in page.helpers and b in page.modules and a != STEPS] == []


async def test_helpers_of_the_page_are_in_use(page: Page, trace: Trace) -> None:
    assert page.helpers <= set(trace.modules())
