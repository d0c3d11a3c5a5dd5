"""The exchange of learned tables continues after any error."""

from __future__ import annotations

import asyncio
import random

import pytest

from plumage.directory.client.tasks import end
from plumage_engine.agent.engine.client import EngineClient, EngineDownError
from plumage_engine.agent.engine_updates.learned_tables import LearnedTablesSync


class Engine(EngineClient):
    """Has no table, each time for a different reason."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.asked = 0

    async def tables(self) -> None:
        self.asked += 1
        raise (ZeroDivisionError("a mistake of ours"), EngineDownError("gone"))[self.asked % 2]


async def test_exchange_continues_after_an_error_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    link = LearnedTablesSync("unix:///nowhere", "chat", "chat-0", engine, period=0.001, rng=random.Random(1))
    task = asyncio.create_task(link.run())
    async with asyncio.timeout(30.0):
        while engine.asked < 6:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await end([task])
    await link.close()
    await engine.close()
    assert link.counts["failures"] >= 2
    assert len([record for record in caplog.records if record.exc_info]) == 1
