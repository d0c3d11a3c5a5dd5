"""Compares predicted with actual cache hits for each replica. A lasting gap means that a rule is broken.

Once a window it compares the hit tokens, as a share of the prompt tokens. A small gap is normal: the last chunk
differs, and chunks are evicted meanwhile. A gap beyond `LARGE` in `LASTING` windows in a row is logged once and becomes
a metric. Then the router renders prompts differently than the engine, or events are lost. Replicas with an unknown
cache are left out. A window with too few tokens continues; after the length of `LASTING` windows its gap is forgotten.
Pure, except for the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from plumage.prometheus import exposition
from plumage_router.fleet.replicas import Replica

__all__ = ["HitGapWatch"]

log = logging.getLogger(__name__)

WINDOW: Final = 60.0  # seconds
LASTING: Final = 5  # windows
LARGE: Final = 0.2  # share of the prompt tokens
LEAST: Final = 4096  # prompt tokens of a window that is judged


@dataclass(slots=True)
class _Window:
    """The current window of one replica.

    `began`: in seconds. `compared`, `error`: the replica's totals then.
    `ratio`: of the last complete window, predicted minus actual.
    `windows`: number in a row beyond LARGE. `since`: when the first of them began.
    """

    began: float
    compared: int
    error: int
    ratio: float = 0.0
    windows: int = 0
    since: float = 0.0


class HitGapWatch:
    """`ratios` and `lasting` are by replica id."""

    def __init__(self) -> None:
        self._windows: dict[Replica, _Window] = {}
        self._next = float("-inf")

    @property
    def ratios(self) -> dict[str, float]:
        """Predicted minus actual hit tokens, as a share of the prompt tokens of the last window."""
        return {replica.id: seen.ratio for replica, seen in self._windows.items()}

    @property
    def lasting(self) -> list[str]:
        """Replicas with a lasting gap."""
        return [replica.id for replica, seen in self._windows.items() if seen.windows >= LASTING]

    def check(self, replicas: Iterable[Replica], now: float) -> None:
        """Call often. now: seconds of a monotonic clock."""
        if now < self._next:
            return
        self._next = now + WINDOW
        known = {replica: self._windows.get(replica) for replica in replicas if replica.cache_known}
        self._windows = {replica: seen or _began(replica, now) for replica, seen in known.items()}
        for replica, seen in self._windows.items():
            self._judge(replica, seen, now)

    def _judge(self, replica: Replica, seen: _Window, now: float) -> None:
        totals = replica.totals
        compared = totals.compared_tokens - seen.compared
        if compared < LEAST:
            if now - seen.began >= LASTING * WINDOW:
                self._windows[replica] = _began(replica, now)
            return
        seen.ratio = (totals.hit_error - seen.error) / compared
        if not seen.windows:
            seen.since = seen.began
        seen.windows = seen.windows + 1 if abs(seen.ratio) > LARGE else 0
        seen.began, seen.compared, seen.error = now, totals.compared_tokens, totals.hit_error
        if seen.windows == LASTING:
            log.warning(
                "%s: predicted and actual hits have differed by %.0f %% of the prompt tokens for %.0f minutes: "
                "check that its template and tokenizer match, and that no events are lost",
                replica.id, 100 * seen.ratio, (now - seen.since) / 60,
            )  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Both as gauges, in Prometheus' text format."""
        ratios, lasting = self.ratios, self.lasting
        text = "Predicted minus actual hit tokens, as a share of a window's prompt tokens."
        yield from exposition.gauges("plumage_router_hit_gap_ratio", text, "replica", ratios)
        text = "1 when that gap has been large for minutes."
        large = {replica: replica in lasting for replica in ratios}
        yield from exposition.gauges("plumage_router_hit_gap_lasting", text, "replica", large)


def _began(replica: Replica, now: float) -> _Window:
    return _Window(now, replica.totals.compared_tokens, replica.totals.hit_error)
