"""Clients that chat with a pool during a change, and record every request that fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from support.kube_access import Access, until
from support.kube_install import Pool
from support.kube_load import Load, Row

__all__ = ["Chats", "chatting"]

_LOAD = {"model": "tiny-chat", "groups": 4, "prefix_words": 50, "workers": 2, "pace_s": 1.0, "answer_tokens": 8}
_FIRST_S = 120.0
_MORE = 4  # answers, two for each client: the first one's request may have been sent earlier


@dataclass(frozen=True)
class Chats:
    """`before`: requests that do not count, because the rules of a new Service reach the nodes a moment late."""

    load: Load
    before: frozenset[str]

    def go_on(self) -> None:
        """Waits until further requests are answered. Every request so far must have a complete answer."""
        known = len(self._rows())
        until(lambda: len(self._rows()) >= known + _MORE, "chats go on")
        self.load.settled(time.time())
        broken = [row for row in self._rows() if row.outcome != "ended"]
        assert not broken, broken

    def _rows(self) -> list[Row]:
        return [row for row in self.load.run().rows if row.id not in self.before]


@contextmanager
def chatting(access: Access, pool: Pool, **settings: Any) -> Iterator[Chats]:
    """Starts when the first chat is answered. `settings`: changed settings of this load."""
    load = Load.start(access, pool, port=8000, key="", **{**_LOAD, **settings})
    try:
        until(lambda: any(row.outcome == "ended" for row in load.run().rows), "a first chat is answered", _FIRST_S)
        yield Chats(load, frozenset(row.id for row in load.run().rows))
    finally:
        load.stop()
