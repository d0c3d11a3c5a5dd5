"""A task ends although something in it swallowed the first cancellation."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

from plumage.directory.client.tasks import end

ROOT = Path(__file__).parents[3]


async def test_task_that_swallows_a_cancellation_ends() -> None:
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


async def test_empty_set_of_tasks_ends_at_once() -> None:
    await end([])


def test_no_product_code_uses_wait_for() -> None:
    """Before Python 3.12 it may return the result that arrived together with a cancellation. The task then continues,
    and its canceller waits for ever. `asyncio.timeout` does not.
    """
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("core", "router", "engine", "operator", "cli", "bench")
        for path in (ROOT / folder).rglob("*.py")
        if "wait_for" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if "wait_for" in (getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "name", None))
    ]
    assert found == []


async def test_timeout_does_not_swallow_a_cancellation_that_arrives_with_the_result() -> None:
    """The rule above relies on this."""
    event, went_on = asyncio.Event(), False

    async def waits() -> None:
        nonlocal went_on
        async with asyncio.timeout(60.0):
            await event.wait()
        went_on = True

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    event.set()
    task.cancel()  # before the task had its turn
    await asyncio.wait([task])
    assert task.cancelled()
    assert not went_on
