"""Bounds the retries of a pool by a share of its requests, so that a failing fleet does not get its load twice. Pure.

In the last 10 s there may be as many retries as a fifth of the requests, and 100 more. So a quiet pool retries too.
These are the defaults of Finagle (https://finagle.github.io/blog/2016/02/08/retry-budgets/). Envoy's
`retry_budget` has the same share, of the requests that are open.

A replica that dies fails all of its requests at once, and these may be more than a fifth. They are a *burst*: requests
that were on the replica when the failure came first, and fail in the same way within a second. A burst needs no budget.
A replica has one burst of a kind in 10 s, so a fleet that fails slowly retries a tenth of its requests more.

Fewer than `MANY` failures are no burst, so one lost connection does not use up the burst of a death soon after it. But
after them, only failures from the `MANY`th in a second on are free. So a replica that fails a little all the time gets
nothing more.

A request that fails engines takes budget too. No charge is given back when it proves to be the cause: where the whole
fleet fails, each request looks like that. Instead half of the reserve is closed to each tenant alone, so that a tenant
whose requests fail engines leaves it to the others.

Times are seconds of the caller's clock. Each call takes constant time. The memory grows with failing replicas, and with
retries of tenants, only.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BURST", "MANY", "RESERVE", "SHARE", "TENANT_RESERVE", "WINDOW", "RetryBudget"]

WINDOW: Final = 10  # seconds, in buckets of one second
SHARE: Final = 0.2  # of the requests in the window
RESERVE: Final = 10 * WINDOW  # retries in a window without any requests: ten a second
TENANT_RESERVE: Final = RESERVE // 2
BURST: Final = 1.0  # seconds
MANY: Final = 10  # failures, a tenth of the reserve


class _Burst:
    """Failures of one replica and kind within a second. `paid`: how many of the first need budget."""

    __slots__ = ("began", "count", "paid")

    def __init__(self, began: float, paid: int) -> None:
        self.began = began
        self.count = 0
        self.paid = paid


class RetryBudget:
    """Call `sent` for each request's first attempt, and `take` before each retry that `in_burst` does not allow."""

    __slots__ = ("_all_requests", "_all_retries", "_bursts", "_by_tenant", "_requests", "_retries", "_second")

    def __init__(self) -> None:
        self._requests = [0] * WINDOW
        self._retries = [0] * WINDOW
        self._all_requests = self._all_retries = 0  # the sums of the lists
        self._by_tenant: list[dict[str, int]] = [{} for _ in range(WINDOW)]  # retries
        self._second = 0
        self._bursts: dict[tuple[str, str], _Burst] = {}  # the last, by replica and failure

    def sent(self, now: float) -> None:
        """Counts a request that was sent to its first replica."""
        self._requests[self._slot(now)] += 1
        self._all_requests += 1

    def take(self, now: float, tenant: str | None = None) -> bool:
        """Counts a retry, if there is budget for it. tenant: whose request it is; None where clients need no key."""
        slot, share = self._slot(now), SHARE * self._all_requests
        if self._all_retries + 1 > share + RESERVE:
            return False
        if tenant is not None:
            if sum(retries.get(tenant, 0) for retries in self._by_tenant) + 1 > share + TENANT_RESERVE:
                return False
            retries = self._by_tenant[slot]
            retries[tenant] = retries.get(tenant, 0) + 1
        self._retries[slot] += 1
        self._all_retries += 1
        return True

    def in_burst(self, replica: str, failure: str, sent_at: float, now: float) -> bool:
        """Whether the failure is one of many that a replica had at once. sent_at: when it got the request."""
        self._slot(now)
        key = (replica, failure)
        burst = self._bursts.get(key)
        if burst is None:
            burst = self._bursts[key] = _Burst(now, 0)
        elif now - burst.began > BURST and burst.count < MANY:
            burst = self._bursts[key] = _Burst(now, MANY - 1)
        if sent_at > burst.began or now - burst.began > BURST:
            return False
        burst.count += 1
        return burst.count > burst.paid

    def _slot(self, now: float) -> int:
        """Returns the place of this second. Forgets what left the window."""
        second = int(now)
        passed = second - self._second
        if passed > 0:
            for past in range(second - min(passed, WINDOW) + 1, second + 1):
                slot = past % WINDOW
                self._all_requests -= self._requests[slot]
                self._all_retries -= self._retries[slot]
                self._requests[slot] = self._retries[slot] = 0
                self._by_tenant[slot] = {}
            self._second = second
            if self._bursts:
                self._bursts = {key: last for key, last in self._bursts.items() if now - last.began < WINDOW}
        return self._second % WINDOW
