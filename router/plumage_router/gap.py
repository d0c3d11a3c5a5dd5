"""Whether a replica's hits are what its directory entries promise: a gap that lasts means that a rule is broken.

Contract: `look` is called often; once a window it compares, replica by replica, the hit tokens that were predicted with
those that engines reported, as a share of the prompt tokens. Some error is always there (the last chunk, evictions on
the way); one beyond `LARGE` in `LASTING` windows in a row is told once in the log, until it closes, and is a metric.
Prompts are then rendered otherwise than the engine does, or events are lost or misread. Replicas whose cache is unknown
promise nothing and are left out. A window with few tokens goes on, and after as long as `LASTING` windows says nothing:
what was known of that replica's gap is forgotten then. Pure but for the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from plumage import exposition
from plumage_router.replicas import Replica

__all__ = ["GapWatch"]

log = logging.getLogger(__name__)

WINDOW: Final = 60.0  # seconds
LASTING: Final = 5  # windows
LARGE: Final = 0.2  # of the prompt tokens
LEAST: Final = 4096  # prompt tokens that say something


@dataclass(slots=True)
class _Seen:
    """began: when the window did, in seconds. compared, error: the replica's totals then. ratio: the last whole
    window's, predicted minus actual. windows: so many in a row were beyond LARGE. since: when the first one began."""

    began: float
    compared: int
    error: int
    ratio: float = 0.0
    windows: int = 0
    since: float = 0.0


class GapWatch:
    """Watches the replicas it is shown. `ratios` and `lasting` are by replica id."""

    def __init__(self) -> None:
        self._seen: dict[Replica, _Seen] = {}
        self._next = float("-inf")

    @property
    def ratios(self) -> dict[str, float]:
        """Predicted minus actual hit tokens, as a share of the prompt tokens of the last window."""
        return {replica.id: seen.ratio for replica, seen in self._seen.items()}

    @property
    def lasting(self) -> list[str]:
        """Replicas whose gap has lasted."""
        return [replica.id for replica, seen in self._seen.items() if seen.windows >= LASTING]

    def look(self, replicas: Iterable[Replica], now: float) -> None:
        """`now` in seconds of a steady clock."""
        if now < self._next:
            return
        self._next = now + WINDOW
        known = {replica: self._seen.get(replica) for replica in replicas if replica.cache_known}
        self._seen = {replica: seen or _began(replica, now) for replica, seen in known.items()}
        for replica, seen in self._seen.items():
            self._judge(replica, seen, now)

    def _judge(self, replica: Replica, seen: _Seen, now: float) -> None:
        totals = replica.totals
        compared = totals.compared_tokens - seen.compared
        if compared < LEAST:
            if now - seen.began >= LASTING * WINDOW:
                self._seen[replica] = _began(replica, now)
            return
        seen.ratio = (totals.hit_error - seen.error) / compared
        if not seen.windows:
            seen.since = seen.began
        seen.windows = seen.windows + 1 if abs(seen.ratio) > LARGE else 0
        seen.began, seen.compared, seen.error = now, totals.compared_tokens, totals.hit_error
        if seen.windows == LASTING:
            log.warning(
                "%s: hits predicted and hits found differ by %.0f %% of the prompt tokens, and have for %.0f minutes: "
                "is its template or tokenizer another one, or are events lost?",
                replica.id, 100 * seen.ratio, (now - seen.since) / 60,
            )  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Both as gauges, in Prometheus' text form."""
        ratios, lasting = self.ratios, self.lasting
        text = "Hit tokens predicted minus found, of a window's prompt tokens."
        yield from exposition.gauges("plumage_router_hit_gap_ratio", text, "replica", ratios)
        text = "1 when that has been large for minutes."
        large = {replica: replica in lasting for replica in ratios}
        yield from exposition.gauges("plumage_router_hit_gap_lasting", text, "replica", large)


def _began(replica: Replica, now: float) -> _Seen:
    return _Seen(now, replica.totals.compared_tokens, replica.totals.hit_error)
