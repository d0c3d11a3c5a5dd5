"""Waits for a condition by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """TimeoutError if it does not become true in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it is a look from outside, without an event to wait for
            await asyncio.sleep(0.002)
