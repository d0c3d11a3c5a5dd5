"""Detects that an engine stalled, or that it restarted, from its load. Pure: the clock is an argument.

`StallWatch` detects an engine that has running requests and makes no step. `RestartWatch` detects a restart, after
which the cache is empty.
"""

from __future__ import annotations

from plumage_engine.agent.engine.load import EngineLoad

__all__ = ["RestartWatch", "StallWatch"]


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


class RestartWatch:
    """Detects the first page of an engine, and the first page after each restart."""

    def __init__(self) -> None:
        self._last: EngineLoad | None = None
        self.doubtful = False  # whether the last look was unlike the life of `_last`: the next one decides

    def has_started(self, load: EngineLoad) -> bool:
        """Whether the engine has started since the last call. Without a start time on the page, counters that fell
        in two calls in a row show a restart: one page may lack some of its lines."""
        last, doubted = self._last, self.doubtful
        self.doubtful = False
        if last is None:
            self._last = load
            return True
        if last.started and load.started:
            self._last = load
            return load.started != last.started
        fell = load.steps < last.steps
        self.doubtful = fell and not doubted
        if not self.doubtful:
            self._last = load
        return fell and doubted
