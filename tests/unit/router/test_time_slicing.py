"""Long work runs in slices, one work at a time, and the event loop is free between two slices."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest
from support.conditions import until

from plumage_router.http import time_slicing
from plumage_router.http.time_slicing import TimeSlicer, run_now


@pytest.fixture
def one_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice takes the whole of its turn, and none is long."""
    monkeypatch.setattr(time_slicing, "TURN", 0.0)
    monkeypatch.setattr(time_slicing, "pause_after", lambda _: 0.0)


def work(name: str, pieces: int, seen: list[str], error: Exception | None = None) -> Generator[None, None, str]:
    for number in range(pieces):
        seen.append(f"{name}{number}")
        yield
    if error is not None:
        raise error
    return name


@pytest.mark.usefixtures("one_slice_a_turn")
async def test_other_callbacks_run_between_turns() -> None:
    loop, seen, done = asyncio.get_running_loop(), list[str](), asyncio.Event()
    TimeSlicer(loop).add(1, work("a", 3, seen), lambda result, error: (seen.append(str(result)), done.set()))

    async def other() -> None:
        while not done.is_set():
            seen.append("other")
            await asyncio.sleep(0)

    await other()
    own = [index for index, entry in enumerate(seen) if entry != "other"]
    assert [seen[index] for index in own] == ["a0", "a1", "a2", "a"]
    assert all(later - earlier > 1 for earlier, later in pairwise(own))


async def test_short_slices_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slicing, "TURN", 1000.0)
    loop, seen = asyncio.get_running_loop(), list[str]()
    slicer = TimeSlicer(loop)
    for name in ("a", "b"):
        slicer.add(1, work(name, 2, seen), lambda result, error: seen.append(f"{result} done"))
    loop.call_soon(seen.append, "other")
    await until(lambda: "other" in seen)
    assert seen == ["a0", "a1", "a done", "b0", "b1", "b done", "other"]


async def test_slices_of_copies_have_a_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slicing, "TURN", 1000.0)
    loop, seen, done = asyncio.get_running_loop(), list[str](), asyncio.Event()
    slicer = TimeSlicer(loop, alone=True)
    slicer.add(1, work("a", 2, seen), lambda result, error: (seen.append(str(result)), done.set()))

    async def other() -> None:
        while not done.is_set():
            seen.append("other")
            await asyncio.sleep(0)

    await other()
    own = [index for index, entry in enumerate(seen) if entry != "other"]
    assert [seen[index] for index in own] == ["a0", "a1", "a"]
    assert all(later - earlier > 1 for earlier, later in pairwise(own))


@pytest.mark.parametrize(("taken", "pause"), [(0.0, 0.0), (0.0019, 0.0), (0.002, 0.006), (0.01, 0.03), (0.5, 0.1)])
def test_loop_is_free_after_long_slices(taken: float, pause: float) -> None:
    """A request that waited meanwhile is served in several turns of the loop, before the next slice."""
    assert time_slicing.pause_after(taken) == pause


@pytest.mark.usefixtures("one_slice_a_turn")
async def test_work_added_at_the_end_of_another_is_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, seen, turns = asyncio.get_running_loop(), list[str](), list[int]()
    slicer = TimeSlicer(loop)
    run = slicer._run
    monkeypatch.setattr(slicer, "_run", lambda: (turns.append(1), run()))
    slicer.add(1, work("a", 0, seen), lambda *_: slicer.add(1, work("b", 1, seen), lambda *_: seen.append("end")))
    await until(lambda: "end" in seen)
    await asyncio.sleep(0.01)
    assert seen == ["b0", "end"]
    assert len(turns) == 3  # a, b0, the end of b


async def test_owner_that_raises_stops_no_other_work() -> None:
    loop, seen = asyncio.get_running_loop(), list[str]()
    raised: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: raised.append(context))
    slicer = TimeSlicer(loop)
    slicer.add(1, work("a", 0, seen), lambda *_: {}["no"])
    slicer.add(2, work("b", 1, seen), lambda *_: seen.append("end"))
    await until(lambda: "end" in seen)
    slicer.add(3, work("c", 1, seen), lambda *_: seen.append("c end"))
    await until(lambda: "c end" in seen)
    loop.set_exception_handler(None)
    assert [type(context["exception"]) for context in raised] == [KeyError]


async def test_failed_work_leaves_nothing_in_memory_until_a_garbage_collection() -> None:
    """Its owner raises the error again, as the router's owners do."""

    class Body:
        pass

    def failing(body: Body) -> Generator[None, None, None]:
        yield
        raise ValueError(body is None)

    def done(result: object, error: Exception | None) -> None:
        try:
            assert error is not None
            raise error
        except ValueError:
            ends.append("end")

    ends: list[str] = []
    body = Body()
    left = weakref.ref(body)
    slicer = TimeSlicer(asyncio.get_running_loop())
    gc.disable()
    try:
        slicer.add(1, failing(body), done)
        del body
        await until(lambda: ends)
        await asyncio.sleep(0)
        assert left() is None
    finally:
        gc.enable()


async def test_smallest_work_runs_first_to_its_end() -> None:
    loop, seen, ends = asyncio.get_running_loop(), list[str](), list[Any]()
    pieces = TimeSlicer(loop)
    for name, size in (("big", 30), ("small", 10), ("middle", 20)):
        pieces.add(size, work(name, 2, seen), lambda result, error: ends.append(result))
    assert len(pieces) == 3
    await until(lambda: len(ends) == 3)
    assert ends == ["small", "middle", "big"]
    assert seen == ["small0", "small1", "middle0", "middle1", "big0", "big1"]
    assert len(pieces) == 0


class Stream:
    """Sends works of 70,000 bytes for ever: the next as soon as one ended."""

    def __init__(self, slicer: TimeSlicer, tenant: str) -> None:
        self.slicer, self.tenant = slicer, tenant
        self.ended = 0
        self.stopped = False
        self.send()

    def send(self) -> None:
        self.slicer.add(70_000, work(self.tenant, 2, []), self._end, tenant=self.tenant)

    def _end(self, result: str | None, error: Exception | None) -> None:
        self.ended += 1
        if not self.stopped and self.ended < 1000:
            self.send()


@pytest.mark.usefixtures("one_slice_a_turn")
@pytest.mark.parametrize("tenant", ["a", "b"])
async def test_small_works_without_end_do_not_starve_a_large_one(tenant: str) -> None:
    """Both beside its own tenant's stream and beside another's."""
    slicer, ends = TimeSlicer(asyncio.get_running_loop()), list[int]()
    small = [Stream(slicer, "a") for _ in range(3)]
    slicer.add(700_000, work("large", 3, []), lambda *_: ends.append(sum(s.ended for s in small)), tenant=tenant)
    await until(lambda: ends)
    for stream in small:
        stream.stopped = True
    assert 0 < ends[0] <= 700_000 // 70_000 + len(small)
    await until(lambda: not len(slicer))


async def test_tenant_with_many_works_leaves_half_to_another() -> None:
    slicer, ends = TimeSlicer(asyncio.get_running_loop()), list[Any]()
    for number in range(8):
        slicer.add(100, work("many", 1, []), lambda *outcome: ends.append(outcome[0]), tenant=f"t{number % 2}")
    for _ in range(2):
        slicer.add(100, work("few", 1, []), lambda *outcome: ends.append(outcome[0]), tenant="few")
    await until(lambda: len(ends) == 10)
    assert [place for place, name in enumerate(ends) if name == "few"] == [2, 5]


@pytest.mark.usefixtures("one_slice_a_turn")
async def test_errors_reach_owner_and_cancelled_work_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slicing, "pause_after", lambda _: 0.02)
    loop, seen, ends = asyncio.get_running_loop(), list[str](), list[Any]()
    pieces = TimeSlicer(loop)
    broken = ValueError("x")
    gone = pieces.add(1, work("gone", 5, seen), lambda *outcome: ends.append(outcome))
    pieces.add(2, work("broken", 1, seen, broken), lambda *outcome: ends.append(outcome))
    begun = pieces.add(3, work("begun", 5, seen), lambda *outcome: ends.append(outcome))
    pieces.add(4, work("last", 1, seen), lambda *outcome: ends.append(outcome))
    gone.cancel()
    await until(lambda: "begun1" in seen)
    begun.cancel()
    await until(lambda: len(ends) == 2)
    assert ends == [(None, broken), ("last", None)]
    assert "gone0" not in seen


def test_short_work_runs_at_once() -> None:
    assert run_now(work("a", 3, [])) == "a"
