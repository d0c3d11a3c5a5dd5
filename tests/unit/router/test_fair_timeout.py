"""A timeout does not count the time in which the event loop was busy."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from plumage_router.clock import fair_timeout


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """On the loop of a running router, which handles timers before sockets."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@pytest.fixture
def port() -> Iterator[int]:
    """The system makes connections to it: no accept is needed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_busy_loop_does_not_count(port: int) -> None:
    async def main() -> None:
        connecting = asyncio.ensure_future(fair_timeout(0.2, asyncio.open_connection("127.0.0.1", port)))
        for _ in range(5):
            await asyncio.sleep(0)
            time.sleep(0.2)  # noqa: ASYNC251
        _, writer = await connecting
        writer.transport.abort()

    run(main())


def test_timeout_cancels_the_work() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await fair_timeout(0.05, waits())
        assert ended == [True]
        outer = asyncio.ensure_future(fair_timeout(60, waits()))
        await asyncio.sleep(0.01)
        outer.cancel()
        await asyncio.wait([outer])
        await asyncio.sleep(0)
        assert outer.cancelled()
        assert ended == [True, True]

    run(main())


def test_timeout_passes_results_and_errors() -> None:
    async def answers() -> int:
        await asyncio.sleep(0.02)
        return 7

    async def fails() -> int:
        raise ConnectionRefusedError

    async def answers_when_ended() -> int:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 8

    async def main() -> None:
        assert await fair_timeout(30, answers()) == 7
        assert await fair_timeout(0.01, answers_when_ended()) == 8
        with pytest.raises(ConnectionRefusedError):
            await fair_timeout(30, fails())

    run(main())


def test_late_failure_is_not_logged() -> None:
    logged: list[Any] = []

    async def fails_when_ended() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionResetError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        outer = asyncio.ensure_future(fair_timeout(60, fails_when_ended()))
        await asyncio.sleep(0.01)
        outer.cancel()
        await asyncio.wait([outer])
        del outer
        await asyncio.sleep(0)
        gc.collect()

    run(main())
    assert logged == []
