"""A task ends although something in it swallowed the first cancellation."""

from __future__ import annotations

import asyncio

from plumage.directory.tasks import end


async def test_a_task_that_swallows_a_cancellation_ends() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed += 1
        await asyncio.sleep(60)

    async def broken() -> None:
        raise RuntimeError("of its own")

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(broken())]
    await asyncio.sleep(0)
    await end(tasks)
    assert all(task.done() for task in tasks)
    assert swallowed == 1


async def test_nothing_to_end() -> None:
    await end([])
