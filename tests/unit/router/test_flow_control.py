"""When a replica has room: by the work that it has to start, and without the requests that FEATHER holds back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plumage.queueing.start_window import LEAST, REQUEST
from plumage.settings.router_config import FlowControlConfig, PriorityClassConfig
from plumage_router.fleet.replicas import Load
from plumage_router.http.errors import RequestError
from plumage_router.proxy.flow_control import FlowControl, Passage, Refusal
from plumage_router.routing.decider import PrefillWork

PASSAGE = Passage("default", "", 10.0, 100.0, 1, 10.0, ())


class Fleet:
    def __init__(self, *loads: Load) -> None:
        self.loads = loads

    def listen(self, listener: Any) -> None:
        """No replica comes or goes."""

    def candidates(self, now: float) -> tuple[Load, ...]:
        return self.loads


class Waiting:
    """A request that takes note of what happens to it."""

    def __init__(self) -> None:
        self.went = False
        self.refused: RequestError | None = None

    def leave_queue(self) -> None:
        self.went = True

    def turn_away(self, error: RequestError) -> None:
        self.refused = error


async def made(load: Load, **more: Any) -> FlowControl:
    classes = (PriorityClassConfig(name="default", weight=1),)
    config = FlowControlConfig(max_requests=100, max_seconds=60, engine_queue=0.5, classes=classes, **more)
    return FlowControl(config, Fleet(load), lambda _: {}, loop=asyncio.get_running_loop())


def start(flow: FlowControl, load: Load, tokens: float, count: int, took: float = 0.1) -> None:
    """The replica has just started so many requests."""
    for _ in range(count):
        flow.started(PrefillWork(load, tokens, tokens, 100.0 - took, True), 100.0)


def passes(flow: FlowControl, load: Load) -> bool:
    return flow.enter(Waiting(), PASSAGE, [load], 100.0) is not None


@pytest.mark.parametrize(("work", "room"), [(1_000.0, True), (1_300.0, False)])
async def test_tokens_close_the_window_and_not_requests(work: float, room: bool) -> None:
    load = Load(0, name="r0", starting=LEAST, starting_work=work)
    flow = await made(load)
    start(flow, load, 200.0 - REQUEST, 6)
    assert passes(flow, load) is room


async def test_replica_that_started_nothing_takes_the_least() -> None:
    load = Load(0, name="r0", starting=LEAST - 1, starting_work=90_000.0)
    flow = await made(load)
    assert passes(flow, load)
    load.starting = LEAST
    assert not passes(flow, load)


@pytest.mark.parametrize(("work", "room"), [(3_900.0, True), (4_100.0, False)])
async def test_long_prompt_counts_by_what_was_computed_lately(work: float, room: bool) -> None:
    """Half a second of it are 4,002 tokens."""
    load = Load(0, name="r0", starting=LEAST, starting_work=work)
    flow = await made(load)
    start(flow, load, 32_000.0, 1, took=4.0)
    assert passes(flow, load) is room


@pytest.mark.parametrize(("held_back", "room"), [(0, False), (3, False), (6, True)])
async def test_work_that_is_held_back_does_not_count(held_back: int, room: bool) -> None:
    load = Load(0, name="r0", starting=12, starting_work=2_400.0, waiting=12, held_back=held_back)
    flow = await made(load)
    start(flow, load, 200.0 - REQUEST, 7)
    assert passes(flow, load) is room


@pytest.mark.parametrize("order", ["Deadline", "SloScore"])
async def test_new_order_holds_for_requests_that_wait(order: str) -> None:
    load = Load(0, name="r0", starting=LEAST, starting_work=500.0)
    flow = await made(load)
    costly, cheap = Waiting(), Waiting()
    for request, prompt in ((costly, 5_000.0), (cheap, 10.0)):
        assert flow.enter(request, PASSAGE._replace(prompt_tokens=prompt), [load], 100.0) is None
    flow.configure(flow.config.model_copy(update={"order": order}))
    load.starting = 1
    cheap.leave_queue = costly.leave_queue = lambda: setattr(load, "starting", LEAST)
    flow.sweep(100.0)
    assert (cheap in flow._waiting, costly in flow._waiting) == (
        (True, False) if order == "Deadline" else (False, True)
    )


@pytest.mark.parametrize("room", [False, True])
async def test_waiting_request_is_refused_once_engines_slow_down(room: bool) -> None:
    load = Load(0, name="r0", starting=LEAST, starting_work=90_000.0)
    flow = await made(load)
    request = Waiting()
    assert flow.enter(request, PASSAGE._replace(objective=2.0), [load], 100.0) is None
    flow.sweep(100.1)
    assert request.refused is None, "engines take half a second, as far as is known"
    start(flow, load, 100.0, 1, took=3.0)
    if room:
        load.starting = 0
        flow._drain(100.2)
    else:
        flow.sweep(100.2)
    assert (request.went, len(flow), flow.refused[Refusal.LATE]) == (False, 0, 1)
    assert request.refused is not None
    assert request.refused.status == 429
