"""Detects from an engine's load that it restarted. After a restart its cache is empty. Pure."""

from __future__ import annotations

from plumage_engine.agent.engine.engine_metrics import EngineLoad

__all__ = ["RestartWatch"]


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
