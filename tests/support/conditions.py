"""Wait in a test until a condition is true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], object], *, pause: float = 0.001, seconds: float = 30.0) -> None:
    """Check the condition after each pause, in seconds. Raises TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a condition has no event to wait for
            await asyncio.sleep(pause)
