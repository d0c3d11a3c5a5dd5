"""Conversations that were rendered whole because reusing their beginning failed: slower, and never wrong.

Some templates need it (one that prints the list of messages as JSON, say). Anything else is a mistake of ours, which
nobody would notice if it were not counted.
"""

from __future__ import annotations

import logging
from collections import Counter

__all__ = ["Fallbacks"]

log = logging.getLogger(__name__)


class Fallbacks:
    """`counts`: by the type of what went wrong. The first of each type is logged with its traceback."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, error: Exception) -> None:
        kind = type(error).__name__
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            log.warning("a conversation is rendered whole, for reusing its beginning failed: %s", kind, exc_info=error)
