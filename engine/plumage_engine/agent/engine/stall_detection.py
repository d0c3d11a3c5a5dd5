"""Detects a stalled engine from its load: it has running requests and makes no step. Pure: the clock is an argument."""

from __future__ import annotations

from plumage_engine.agent.engine.engine_metrics import EngineLoad

__all__ = ["StallWatch"]


class StallWatch:
    """`seconds` without progress while requests run make an engine stalled."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: tuple[float, int] | None = None
        self._since = 0.0

    def is_stalled(self, load: EngineLoad, events: int, now: float) -> bool:
        """Whether the engine is stalled. `events`: batches of KV events so far, progress as well."""
        progress = (load.steps, events)
        if load.running <= 0 or progress != self._seen:
            self._seen = progress
            self._since = now
            return False
        return now - self._since >= self._seconds
