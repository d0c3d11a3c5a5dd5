"""The queue of requests that wait because no replica can take them: a pool at zero replicas, or one that starts.

The queue is bounded in number and time. A request over a bound gets a 503 with Retry-After. Waiting requests continue
in the order in which they came, at the first tick with an available replica. The operator scales up by `unserved`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from plumage.settings.router_config import WaitQueueConfig
from plumage_router.http.errors import RequestError
from plumage_router.metrics import SECONDS, BufferedHistogram

__all__ = ["WaitQueue", "WaitingRequest", "no_replica_yet"]

_RECENT: Final = 60.0  # seconds that a request counts as unserved
_MAX_RECENT: Final = 10_000  # unserved requests that are counted
_RETRY_AFTER: Final = 10  # seconds: a simulated engine starts in less, a real one in minutes


class WaitingRequest(Protocol):
    def can_resume(self, now: float) -> bool:
        """Whether a replica is available on which the request was not tried."""
        ...

    def resume_routing(self) -> None:
        """Goes on: a replica is available."""
        ...

    def turn_away(self, error: RequestError) -> None:
        """Ends the request: no replica came in time."""
        ...


class WaitQueue:
    """`config` may be replaced while requests wait. Times are seconds on the caller's clock.

    `total`: requests that ever waited. `refused`: requests that were turned away.
    """

    def __init__(self, config: WaitQueueConfig) -> None:
        self.config = config
        self.total = 0
        self.refused = 0
        self.wait = BufferedHistogram(SECONDS)
        self._waiting: dict[WaitingRequest, float] = {}  # the start of the wait, in order of arrival
        self._recent: deque[float] = deque(maxlen=_MAX_RECENT)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def enabled(self) -> bool:
        """Whether requests without a replica wait at all."""
        return self.config.max_requests > 0

    def add(self, request: WaitingRequest, now: float) -> bool:
        """Returns True if the request waits now; False when it must be refused."""
        self._recent.append(now)
        if len(self._waiting) >= self.config.max_requests:
            self.refused += 1
            return False
        self.total += 1
        self._waiting[request] = now
        return True

    def remove(self, request: WaitingRequest) -> None:
        """Removes a request that ended. Requests that do not wait are ignored."""
        self._waiting.pop(request, None)

    def resume(self, now: float) -> None:
        """Resumes the requests that can use one of the available replicas."""
        for request, since in list(self._waiting.items()):
            if request in self._waiting and request.can_resume(now):  # it may have ended meanwhile
                del self._waiting[request]
                self.wait.observe(now - since)
                request.resume_routing()

    def expire(self, now: float, why: str) -> None:
        """Turns away the requests that waited too long."""
        bound = now - self.config.max_seconds
        for request in [request for request, since in self._waiting.items() if since <= bound]:
            self._turn_away(request, why)

    def close(self, why: str = "the router is shutting down") -> None:
        """Turns away all requests, so that their clients ask another router."""
        for request in list(self._waiting):
            self._turn_away(request, why)

    def unserved(self, now: float) -> int:
        """Requests that found no replica in the last minute, or still wait for one."""
        recent = self._recent
        while recent and recent[0] < now - _RECENT:
            recent.popleft()
        return max(len(recent), len(self._waiting))

    def _turn_away(self, request: WaitingRequest, why: str) -> None:
        if self._waiting.pop(request, None) is not None:
            self.refused += 1
            request.turn_away(no_replica_yet(why))


def no_replica_yet(why: str) -> RequestError:
    """Returns a 503 for a pool that is about to get a replica."""
    message = f"No replica can take the request yet: {why}."
    return RequestError(503, message, code="no_replica", retry_after=_RETRY_AFTER)
