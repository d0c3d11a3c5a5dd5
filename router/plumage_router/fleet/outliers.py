"""Ejects a replica that fails more often than the others: it gets no requests for a while. Pure.

The breaker opens after failures in a row. An engine that fails a third of its requests has successes between them, so
its breaker stays closed while clients wait for retries. Twice a second the answers of the last 30 to 60 s are compared:

- The replica and the others together have `VOLUME` answers and failures each, or more.
- The replica failed at least `BAD` of its requests, and the others together at most `WELL` of theirs. So a fleet that
  fails everywhere ejects nobody. Others that failed `BAD` too are left out, else two sick replicas would hide each
  other.
- The difference is `SURE` standard errors or more (the test of two proportions), so chance alone ejects hardly ever.

The worst goes first. At most `MOST` of the replicas are ejected at a time, but one may always be. Another replica must
be available. The breaker (`breaker.py`) has the back-off, and counts. Failures that the request may have caused are not
in the counts. Time is none of the criteria: LBGR learns how fast each replica is.

A breaker hears of a failure when another replica answers the request, which may take long. Until then a replica that
fails at once would get most requests, and their retries would spend the pool's budget. Such a replica is a *suspect*.
It has `SUSPECT` undecided failures or more since its last answer, and the other replicas together have at most a tenth
as many. Others that are suspects too, or not available, are left out. Requests that fail engines would have failed on
these too. A suspect of two comparisons in a row gets an open breaker. It may be a wrong suspicion: the others take
longer to fail. Then the breaker closes again (`breaker.py`), and the pool suspects no replica for `PAUSE`. Replicas
that fail are still found, by their breakers and by comparison.

As Envoy's outlier detection by success rate, with the others' mean in place of the deviation of hosts, since a pool
may have two replicas: https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier
"""

from __future__ import annotations

import logging
import math
from typing import Final

from plumage_router.fleet.breaker import SUSPECT, BreakerState
from plumage_router.fleet.replicas import Fleet, Replica

__all__ = ["BAD", "MOST", "PAUSE", "VOLUME", "WELL", "Outliers"]

log = logging.getLogger(__name__)

VOLUME: Final = 20
BAD: Final = 0.2
WELL: Final = 0.1
SURE: Final = 3.0
MOST: Final = 0.1  # of the replicas
PAUSE: Final = 30.0  # seconds without suspicions after a wrong one
_INTERVAL: Final = 0.5  # seconds between two comparisons
_HALF: Final = 30.0  # seconds: counts are forgotten in halves


class Outliers:
    """Compares the replicas of a fleet. `ejections`: how many there were. pool: its name, for the log."""

    def __init__(self, fleet: Fleet, pool: str) -> None:
        self._fleet = fleet
        self._pool = pool
        self._next = self._next_half = 0.0
        self._suspects: set[str] = set()
        self.ejections = 0

    def sweep(self, now: float) -> None:
        """Call with each tick."""
        if now < self._next:
            return
        self._next = now + _INTERVAL
        self._open_suspects(now)
        self._compare(now)
        if now >= self._next_half:
            self._next_half = now + _HALF
            for replica in self._fleet:
                replica.breaker.outcomes.age()

    def _open_suspects(self, now: float) -> None:
        """Opens the breakers of replicas that fail all, before that is certain."""
        if any(now - replica.breaker.acquitted_at < PAUSE for replica in self._fleet):
            self._suspects = set()  # requests fail engines at this time
            return
        many = [replica for replica in self._fleet if _fails_many(replica)]
        suspects: list[Replica] = []
        if many:  # the unusual case
            others = [r.breaker.undecided for r in self._fleet if r.reason(now) is None and not _fails_many(r)]
            suspects = [replica for replica in many if others and 10 * sum(others) <= replica.breaker.undecided]
        for replica in suspects:
            if replica.id in self._suspects and self._another(replica, now):
                text = "pool %s: replica %s failed %d requests that no other replica has failed so far"
                log.warning(text, self._pool, replica.id, replica.breaker.undecided)
                replica.breaker.suspect(now)
                self._fleet.changed()
        self._suspects = {replica.id for replica in suspects}

    def _compare(self, now: float) -> None:
        replicas = list(self._fleet)
        failed = sum(replica.breaker.outcomes.failed for replica in replicas)
        if failed < BAD * VOLUME:  # the usual case
            return
        bad = [replica for replica in replicas if _is_bad(replica)]
        rest_failed = failed - sum(replica.breaker.outcomes.failed for replica in bad)
        rest = sum(replica.breaker.outcomes.total for replica in replicas if not _is_bad(replica))
        outliers = [replica for replica in bad if _is_outlier(replica, rest_failed, rest)]
        outliers.sort(key=lambda replica: replica.breaker.outcomes.rate, reverse=True)
        for replica in outliers:
            if not self._may_eject(replica, now):
                continue
            outcomes = replica.breaker.outcomes
            text = "pool %s: replica %s failed %d of %d requests, the others %d of %d; it gets none for a while"
            log.warning(text, self._pool, replica.id, outcomes.failed, outcomes.total, rest_failed, rest)
            replica.breaker.eject(now)
            self._fleet.changed()
            self.ejections += 1

    def _may_eject(self, replica: Replica, now: float) -> bool:
        """Whether the bounds allow it: few are ejected, and another replica is available."""
        ejected = sum(other.breaker.ejected for other in self._fleet)
        if ejected >= max(1, int(MOST * len(self._fleet))) or replica.reason(now) is not None:
            return False
        return self._another(replica, now)

    def _another(self, replica: Replica, now: float) -> bool:
        return any(other is not replica and other.reason(now) is None for other in self._fleet)


def _fails_many(replica: Replica) -> bool:
    """Whether it is a suspect, if others fail less."""
    return replica.breaker.state is BreakerState.CLOSED and replica.breaker.undecided >= SUSPECT


def _is_bad(replica: Replica) -> bool:
    """Whether it is an outlier, if others are well."""
    outcomes = replica.breaker.outcomes
    return replica.breaker.state is BreakerState.CLOSED and outcomes.total >= VOLUME and outcomes.rate >= BAD


def _is_outlier(replica: Replica, rest_failed: int, rest: int) -> bool:
    """Whether it fails more often than the replicas that are not bad. rest_failed, rest: their counts."""
    outcomes = replica.breaker.outcomes
    if rest < VOLUME or rest_failed > WELL * rest:
        return False
    both = (outcomes.failed + rest_failed) / (outcomes.total + rest)
    error = math.sqrt(both * (1 - both) * (1 / outcomes.total + 1 / rest))
    return outcomes.rate - rest_failed / rest >= SURE * error
