"""One request that a client waits for, with its answer."""

from __future__ import annotations

import asyncio

from plumage_engine.simulator.engine.request import SimRequest
from plumage_engine.simulator.events.block_table import Origin
from plumage_engine.simulator.model.answers import Answer

__all__ = ["Job"]


class Job:
    """One request with its answer, composed before it runs. emitted: tokens put out so far. cached_tokens: known at
    the end. changed: set at the end, and for streams at each token."""

    def __init__(self, request: SimRequest, origin: Origin, answer: Answer, *, stream: bool, now: float) -> None:
        self.request = request
        self.origin = origin
        self.answer = answer
        self.stream = stream
        self.emitted = 0
        self.cached_tokens: int | None = None
        self.gone = False
        self.changed = asyncio.Event()
        self.arrived = self.last_token = now

    @property
    def done(self) -> bool:
        return self.cached_tokens is not None
