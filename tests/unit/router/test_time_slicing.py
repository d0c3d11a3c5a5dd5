"""Long work runs in slices, one work at a time, and the event loop is free between two slices."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import pairwise
from typing import Any

from support.conditions import until

from plumage_router.http.time_slicing import TimeSlicer, run_now


def work(name: str, pieces: int, seen: list[str], error: Exception | None = None) -> Generator[None, None, str]:
    for number in range(pieces):
        seen.append(f"{name}{number}")
        yield
    if error is not None:
        raise error
    return name


async def test_other_callbacks_run_between_slices() -> None:
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


async def test_errors_reach_owner_and_cancelled_work_calls_nothing() -> None:
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
