"""Waits until the engine has no request in flight, as the pod's preStop hook asks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from plumage_engine.agent.lifecycle.state_watch import StateWatch

__all__ = ["drain_engine"]

QUIET = 0.5  # seconds without requests that end a drain; a router may send one before it reads the new state


async def drain_engine(watch: StateWatch, seconds: float, interval: float) -> dict[str, Any]:
    """Report Draining, then wait until nothing is in flight or `seconds` have passed.

    interval: longest pause in seconds between two checks of the engine.
    """
    started = time.monotonic()
    watch.start_drain()
    quiet_since: float | None = None
    while (now := time.monotonic()) - started < seconds:
        await watch.check()
        if watch.in_flight:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = now
        elif now - quiet_since >= QUIET:
            break
        await asyncio.sleep(min(0.1, interval))
    left = watch.in_flight
    return {"drained": not left, "inFlight": left, "seconds": round(time.monotonic() - started, 3)}
