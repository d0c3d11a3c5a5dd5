"""The operator's log: lines for people, or JSON for collectors."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime

from plumage_operator.log_limit import OneLinePerCause

__all__ = ["set_up"]

_QUIET = ("kopf", "aiohttp.access", "asyncio")


def set_up(level: str, form: str) -> OneLinePerCause:
    """kopf logs every watch that it opens; only its warnings are of use. Returns the filter of repeated lines."""
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
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told)
