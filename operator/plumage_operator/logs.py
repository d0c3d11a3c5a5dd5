"""The operator's log: lines for people, or JSON for collectors."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

__all__ = ["set_up"]

_QUIET = ("kopf", "aiohttp.access", "asyncio")


def set_up(level: str, form: str) -> None:
    """kopf tells of every watch that it opens; only its warnings are of use."""
    handler = logging.StreamHandler()
    lines = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_Json() if form == "json" else lines)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if level != "DEBUG":
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)


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
