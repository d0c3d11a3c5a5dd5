"""The operator's log: text or JSON lines, and one line for each cause and interval.

An API server that is down, or a namespace that is being deleted, affects every pool at once. One line reports it. When
the interval ends, another line reports how many lines were suppressed.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["INTERVAL", "OneLinePerCause", "cause", "configure_logging"]

INTERVAL: Final = 30.0
"""Seconds."""

_MOST: Final = 1_000  # causes to remember

_CAUSE: Final = "cause"

_KOPF_RETRIES: Final = "Request attempt #"
"""kopf logs each attempt of each watch, and the operator has a watch for every kind."""


def cause(*parts: object) -> dict[str, Any]:
    """The `extra` of a log call. Lines with equal parts have the same cause."""
    return {_CAUSE: ":".join(map(str, parts))}


@dataclass(slots=True)
class _Open:
    """An interval of one cause.

    since: when its line was written. held: how many lines were suppressed. last: the last of those.
    """

    since: float
    held: int = 0
    last: logging.LogRecord | None = None


class OneLinePerCause(logging.Filter):
    """A filter for a log handler: one line for each cause and interval. Lines without a cause pass.

    clock: monotonic seconds. interval: seconds.
    """

    def __init__(self, clock: Callable[[], float], interval: float = INTERVAL) -> None:
        super().__init__()
        self._clock = clock
        self._interval = interval
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record now."""
        name = _cause_of(record)
        if name is None:
            return True
        now, seen = self._clock(), self._open.get(name)
        if seen is not None and now - seen.since < self._interval:
            seen.held, seen.last = seen.held + 1, record
            return False
        if seen is not None and seen.held:
            _append(record, seen.held, self._interval)
        self._begin(name, now)
        return True

    def flush(self) -> None:
        """Reports suppressed lines of intervals that are over. Call it every few seconds."""
        now = self._clock()
        for name, seen in [*self._open.items()]:
            if now - seen.since >= self._interval:
                self._end(name, seen, now)

    def flush_all(self) -> None:
        """Reports suppressed lines of all intervals, because the process ends."""
        for name, seen in [*self._open.items()]:
            self._end(name, seen, self._clock())

    def _end(self, name: str, seen: _Open, now: float) -> None:
        del self._open[name]
        if seen.last is not None:
            _append(seen.last, seen.held - 1, self._interval)
            self._open.pop(name, None)
            logging.getLogger(seen.last.name).handle(seen.last)  # passes the filter, which starts an interval

    def _begin(self, name: str, now: float) -> None:
        self._open[name] = _Open(now)
        self._open.move_to_end(name)
        while len(self._open) > _MOST:
            self._open.popitem(last=False)


def _cause_of(record: logging.LogRecord) -> str | None:
    given = getattr(record, _CAUSE, None)
    if given is not None:
        return str(given)
    if record.name.startswith("kopf") and str(record.msg).startswith(_KOPF_RETRIES):
        return "kopf:retries"
    return None


def _append(record: logging.LogRecord, more: int, interval: float) -> None:
    if more > 0:
        record.msg, record.args = f"{record.getMessage()} ({more} more like it within {interval:.0f} s)", ()


_QUIET = ("kopf", "aiohttp.access", "asyncio")


def configure_logging(level: str, form: str) -> OneLinePerCause:
    """Configures the root logger and returns the filter of repeated lines. kopf logs every watch that it opens, so only
    its warnings are kept.
    """
    limit = OneLinePerCause(time.monotonic)
    handler = logging.StreamHandler()
    handler.addFilter(limit)
    lines = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_Json() if form == "json" else lines)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if level != "DEBUG":
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
    return limit


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)
