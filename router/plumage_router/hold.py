"""Requests that wait because no replica can take them: a pool that sleeps at zero, or whose replicas all begin.

Contract: bounded in number and in time; whoever is over either bound is told to come back (503 with Retry-After), so no
request is lost in silence. They go on in the order in which they came, at the first tick at which a replica can be
chosen. `wanting` tells the operator that the pool must wake.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from plumage_router.config import HoldConfig
from plumage_router.errors import RequestError
from plumage_router.metrics import SECONDS, Histogram

__all__ = ["Held", "Hold", "no_replica_yet"]

RECENT: Final = 60.0  # seconds that a request counts as wanting a replica
MOST_RECENT: Final = 10_000  # requests that are counted one by one
COME_BACK: Final = 10  # seconds: a simulated engine starts in less, a real one in minutes


class Held(Protocol):
    """A request that waits."""

    def can_go_on(self, now: float) -> bool:
        """Is there a replica that it was not tried on?"""
        ...

    def go_on(self) -> None:
        """A replica can be chosen."""
        ...

    def turn_away(self, error: RequestError) -> None:
        """It waited too long."""
        ...


class Hold:
    """`config` may be replaced while requests wait. Times are seconds on the caller's clock."""

    def __init__(self, config: HoldConfig) -> None:
        self.config = config
        self.total = 0
        self.refused = 0
        self.wait = Histogram(SECONDS)
        self._waiting: dict[Held, float] = {}  # since when, in the order in which they came
        self._recent: deque[float] = deque(maxlen=MOST_RECENT)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def open(self) -> bool:
        """Does a request without a replica wait here at all?"""
        return self.config.max_requests > 0

    def take(self, request: Held, now: float) -> bool:
        """True if it waits from now on; False where it has to be refused."""
        self._recent.append(now)
        if len(self._waiting) >= self.config.max_requests:
            self.refused += 1
            return False
        self.total += 1
        self._waiting[request] = now
        return True

    def forget(self, request: Held) -> None:
        """It ended, in whatever way; those that don't wait are tolerated."""
        self._waiting.pop(request, None)

    def release(self, now: float) -> None:
        """Replicas can be chosen: those that may use one of them go on."""
        for request, since in list(self._waiting.items()):
            if request in self._waiting and request.can_go_on(now):  # it may have ended while another went on
                del self._waiting[request]
                self.wait.observe(now - since)
                request.go_on()

    def expire(self, now: float, why: str) -> None:
        """Turns away those that waited long enough."""
        bound = now - self.config.max_seconds
        for request in [request for request, since in self._waiting.items() if since <= bound]:
            self.refuse(request, why)

    def close(self, why: str = "the router is shutting down") -> None:
        """It ends: all are turned away, so that their clients ask another one."""
        for request in list(self._waiting):
            self.refuse(request, why)

    def refuse(self, request: Held, why: str) -> None:
        if self._waiting.pop(request, None) is not None:
            self.refused += 1
            request.turn_away(no_replica_yet(why))

    def oldest(self, now: float) -> float:
        """Seconds that the first of them has waited."""
        return max(0.0, now - next(iter(self._waiting.values()))) if self._waiting else 0.0

    def wanting(self, now: float) -> int:
        """Requests that found no replica in the last minute, or wait for one still."""
        recent = self._recent
        while recent and recent[0] < now - RECENT:
            recent.popleft()
        return max(len(recent), len(self._waiting))


def no_replica_yet(why: str) -> RequestError:
    """503; the pool is waking, or was asked to."""
    return RequestError(503, f"No replica can take the request yet: {why}.", code="no_replica", retry_after=COME_BACK)
