"""The path of a manifest through the operator's modules to a Deployment is the one that the architecture page shows."""

from __future__ import annotations

import pytest
from aiohttp import web
from support.kube_double import answered_by
from support.module_path import Page, Trace, follow, page_of
from support.operator_world import CONFIG, NOW, pool_object

from plumage_operator.cache.store import Store
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.controller.perform import Performer
from plumage_operator.controller.queue import WorkQueue
from plumage_operator.controller.reconcile import Key, Reconciler
from plumage_operator.controller.watch import apply_event
from plumage_operator.kube.warning_events import WarningEvents
from plumage_operator.observability.metrics import Metrics

OPERATOR = "operator/plumage_operator"
STARTS = {f"{OPERATOR}/controller/watch.py:apply_event", f"{OPERATOR}/controller/reconcile.py:reconcile"}
OTHER_CHILDREN = frozenset(
    f"{OPERATOR}/{function}"
    for function in (
        "resources/__init__.py:_directory",
        "resources/__init__.py:_router",
        "resources/network_policy.py:build_network_policy",
        "resources/workload.py:build_account",
        "resources/workload.py:build_budget",
        "controller/reconcile.py:_create_keys",
        "controller/reconcile.py:_write_status",
        "controller/plan.py:plan_status",
        "controller/reconcile.py:_warnings_of",
        "status/diagnosis.py:stuck_pods",
    )
)
"""They build or write the other children and the status."""


@pytest.fixture
def page() -> Page:
    return page_of("One manifest")


@pytest.fixture
async def trace() -> Trace:
    """A new pool, from kopf's event to the creation of its Deployments."""
    created = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        created.append((request.method, body["kind"]))
        return web.json_response({**body, "metadata": {**body["metadata"], "uid": "u"}}, status=201)

    store = Store()
    queue: WorkQueue[Key] = WorkQueue(lambda: 0.0, lambda: 1.0)
    async with answered_by(answer) as api:
        performer = Performer(api, EventRecorder(api, lambda: NOW, "one"), store)
        warnings = WarningEvents(api, lambda: 0.0, lambda _: True)
        reconciler = Reconciler(store, queue, warnings, performer, CONFIG, Metrics(), clock=lambda: NOW)
        with follow(STARTS, (OPERATOR,), ("core/plumage/",), OTHER_CHILDREN) as trace:
            apply_event(store, queue, pool_object(), gone=False)
            await reconciler.reconcile(await queue.take())
    assert created.count(("POST", "Deployment")) == 3, "engine, router, directory"
    return trace


def test_page_lists_every_module_that_a_manifest_enters(page: Page, trace: Trace) -> None:
    print(*trace.modules(), sep="\n")
    assert trace.modules() == list(page.entries)
    wrong = [module for module, entry in page.entries.items() if entry not in trace.functions[module]]
    assert not wrong, {module: sorted(trace.functions[module]) for module in wrong}


def test_page_states_the_counts(page: Page, trace: Trace) -> None:
    """With the target of issue 19, and whether it is reached."""
    modules = len(trace.modules())
    assert page.counts == {
        "modules": (modules, 14, modules <= 14),
        "of these, modules that decide": (page.deciding, 14, page.deciding <= 14),
    }
