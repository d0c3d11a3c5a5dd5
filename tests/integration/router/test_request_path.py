"""The path of a chat request through the router's modules is the one that the architecture page shows."""

from __future__ import annotations

from typing import Any

import pytest
from support.module_path import Page, Trace, follow, page_of

ROUTER = "router/plumage_router"
CLIENT, ENGINE = f"{ROUTER}/http/downstream.py:data_received", f"{ROUTER}/http/upstream.py:data_received"

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


def test_page_lists_every_module_that_a_request_enters(page: Page, trace: Trace) -> None:
    print(*trace.modules(), sep="\n")
    assert trace.modules() == list(page.entries)
    wrong = [module for module, entry in page.entries.items() if entry not in trace.functions[module]]
    assert not wrong, {module: sorted(trace.functions[module]) for module in wrong}


def test_page_states_the_counts(page: Page, trace: Trace) -> None:
    """With the targets of issue 19, and whether they are reached."""
    print(*trace.returns(), sep="\n")
    modules, returns = len(trace.modules()), len(trace.returns())
    assert page.counts == {
        "modules": (modules, 15, modules <= 15),
        "of these, modules that decide": (page.deciding, 15, page.deciding <= 15),
        "returns": (returns, 3, returns <= 3),
    }
