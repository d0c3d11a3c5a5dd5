"""What a tenant used of its limits, and what one of several routers may still admit.

The routers of a pool count together. Each publishes its own number for a limit, and reads the numbers of the others.
The number is absolute, so a message that is sent twice does no harm. No request waits for such an exchange while the
router has a share of what is left. The share is small, so the routers together stay within the limit. Beyond it the
router counts the request first, exchanges, and then admits it if the sum is within the limit.

While the directory does not answer, each router admits an equal part of what was left. A router that nobody had heard
of before is not known then.

A window begins with the clock's minute, or with the day in UTC. Routers with different clocks have different windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

__all__ = ["Ask", "Limit", "Meter", "TenantUse", "Verdict"]

FRESH: Final = 0.1  # seconds for which the numbers of other routers count as recent
RECHECK: Final = 1.0  # seconds after which a router that refuses requests asks again
STALE_SHARE: Final = 1 / 200  # of the limit: what a router admits before it has heard of the others again
SILENCE: Final = 15.0  # seconds after which the requests in flight of a silent router are forgotten
RENEWAL: Final = 5.0  # seconds between repeated messages while requests are in flight …
LATER_RENEWAL: Final = 60.0  # … and while only a window counts, in case the server lost the numbers
MINUTE: Final = 60
DAY: Final = 86_400


class Limit(StrEnum):
    """What a quota limits. The value is a metric label and the field of a manifest."""

    REQUESTS_PER_MINUTE = "requestsPerMinute"
    TOKENS_PER_MINUTE = "tokensPerMinute"
    TOKENS_PER_DAY = "tokensPerDay"
    CONCURRENT_REQUESTS = "concurrentRequests"

    @property
    def seconds(self) -> int | None:
        """The length of its window; None for a number of requests at one time."""
        return _SECONDS[self]

    @property
    def counts_tokens(self) -> bool:
        return self in (Limit.TOKENS_PER_MINUTE, Limit.TOKENS_PER_DAY)


_SECONDS: Final = {
    Limit.REQUESTS_PER_MINUTE: MINUTE,
    Limit.TOKENS_PER_MINUTE: MINUTE,
    Limit.TOKENS_PER_DAY: DAY,
    Limit.CONCURRENT_REQUESTS: None,
}


class Verdict(Enum):
    """ASK: the request is counted, and the other routers' numbers decide."""

    ADMIT = "admit"
    ASK = "ask"
    REFUSE = "refuse"


@dataclass(slots=True)
class Meter:
    """One limit of one tenant.

    mine: what this router admitted in the window. published: of that, what the others know. others: the sum of
    their numbers. read_at: when `others` was read, in seconds of a monotonic clock. window: its number since 1970, 0
    without windows. seen, before: the routers that counted in this window and in the last one, with this router.
    """

    kind: Limit
    limit: int
    mine: int = 0
    published: int = 0
    others: int = 0
    read_at: float = -math.inf
    window: int = 0
    seen: int = 1
    before: int = 1

    def roll(self, wall: float) -> None:
        """Begins a new window if the clock says so. wall: seconds since 1970."""
        seconds = self.kind.seconds
        if seconds is not None and (window := int(wall // seconds)) != self.window:
            self.window, self.mine, self.published, self.others, self.read_at = window, 0, 0, 0, -math.inf
            self.before, self.seen = self.seen, 1

    @property
    def routers(self) -> int:
        """The routers between which the rest is shared."""
        return max(self.seen, self.before)

    @property
    def used(self) -> int:
        return self.mine + self.others

    def verdict(self, cost: int, now: float, *, shared: bool) -> Verdict:
        """Whether a request of this cost fits. shared: the directory answers. now: of the monotonic clock."""
        fresh = now - self.read_at <= FRESH
        if self.used + cost > self.limit:
            # The others' requests in flight end, and what they counted for requests that they then refused is free.
            old = now - self.read_at > (FRESH if self.kind.seconds is None else RECHECK)
            return Verdict.ASK if shared and old and self.mine + cost <= self.limit else Verdict.REFUSE
        pending, left = self.mine - self.published, self.limit - self.published - self.others
        if not shared:
            fits = pending <= 0 or pending + cost <= left / self.routers
            return Verdict.ADMIT if fits else Verdict.REFUSE
        first = cost if pending <= 0 else self.limit * STALE_SHARE  # before it has heard of the others again
        share = left / (self.routers + 1) if fresh else first
        return Verdict.ADMIT if pending + cost <= share else Verdict.ASK

    def seconds_left(self, wall: float) -> int:
        """Until the next window, at least 1. Requests in flight may end at any time."""
        seconds = self.kind.seconds
        return 1 if seconds is None else max(1, math.ceil(seconds - wall % seconds))

    def read(self, numbers: Mapping[str, tuple[int, float]], published: int, now: float, wall: float) -> None:
        """Takes the other routers' numbers. numbers: router → (number, when it was written, seconds since 1970)."""
        if self.kind.seconds is None:
            numbers = {name: found for name, found in numbers.items() if abs(wall - found[1]) <= SILENCE}
        self.published, self.others, self.read_at = published, sum(number for number, _ in numbers.values()), now
        self.seen = 1 + len(numbers)

    def is_due(self, now: float) -> bool:
        """Whether the other routers do not know the number, or may have lost it."""
        renewal = RENEWAL if self.kind.seconds is None else LATER_RENEWAL
        return self.mine != self.published or (self.mine > 0 and now - self.read_at > renewal)


@dataclass(slots=True, eq=False)
class Ask:
    """A request that waits for the other routers' numbers. decided: called with the limit that refuses it, or None."""

    tokens: int
    decided: Callable[[Limit | None], None]
    published: bool = False


@dataclass(slots=True, eq=False)
class TenantUse:
    """One tenant in one router. `asks`: the requests that wait, in order; they are counted already."""

    meters: dict[Limit, Meter]
    asks: list[Ask] = field(default_factory=list)

    @classmethod
    def of(cls, limits: Mapping[Limit, int]) -> TenantUse:
        return cls({kind: Meter(kind, limit) for kind, limit in limits.items()})

    def change(self, limits: Mapping[Limit, int]) -> None:
        """Other limits from now on. What was used stays."""
        kept = self.meters
        self.meters = {kind: kept.get(kind) or Meter(kind, limit) for kind, limit in limits.items()}
        for kind, limit in limits.items():
            self.meters[kind].limit = limit

    def roll(self, wall: float) -> None:
        for meter in self.meters.values():
            meter.roll(wall)

    def take(self, tokens: int, wall: float, now: float, *, shared: bool) -> tuple[Verdict, Limit | None]:
        """Counts a request unless it is refused; returns the limit that refuses it.

        tokens: of prompt and answer, as far as they are known. For ASK the caller adds an `Ask`.
        """
        self.roll(wall)
        asks = False
        for meter in self.meters.values():
            found = meter.verdict(_cost(meter.kind, tokens), now, shared=shared)
            if found is Verdict.REFUSE:
                return found, meter.kind
            asks = asks or found is Verdict.ASK
        self._count(tokens)
        return (Verdict.ASK if asks else Verdict.ADMIT), None

    def end(self, taken: int, tokens: int, wall: float) -> None:
        """A request ended. taken: the tokens that were counted for it. tokens: what it really used.

        What is used beyond the window in which it was taken counts for the window of its end.
        """
        self.roll(wall)
        for meter in self.meters.values():
            if meter.kind is Limit.CONCURRENT_REQUESTS:
                meter.mine = max(0, meter.mine - 1)
            elif meter.kind.counts_tokens:
                meter.mine = max(0, meter.mine + tokens - taken)

    def withdraw(self, ask: Ask) -> None:
        """A waiting request ended before it was decided."""
        if ask in self.asks:
            self.asks.remove(ask)
            self._count(ask.tokens, -1)

    def settle(self, *, wall: float, now: float, shared: bool) -> None:
        """Decides the asks that the other routers could see; without the directory all, by this router's share."""
        self.roll(wall)
        seen = [ask for ask in self.asks if ask.published or not shared]
        self.asks = [ask for ask in self.asks if not (ask.published or not shared)]
        for ask in seen:
            self._count(ask.tokens, -1)
        for ask in seen:
            refused = self._refused(ask.tokens, now, shared)
            if refused is None:
                self._count(ask.tokens)
            ask.decided(refused)

    def due(self, wall: float, now: float) -> list[Meter]:
        """The meters whose numbers must be published."""
        self.roll(wall)
        return [meter for meter in self.meters.values() if meter.is_due(now)]

    @property
    def idle(self) -> bool:
        """Whether nothing of it must be remembered: no request runs, and its windows are empty."""
        return not self.asks and all(not meter.mine for meter in self.meters.values())

    def _refused(self, tokens: int, now: float, shared: bool) -> Limit | None:
        for meter in self.meters.values():
            cost = _cost(meter.kind, tokens)
            over = meter.used + cost > meter.limit
            if over or (not shared and meter.verdict(cost, now, shared=False) is Verdict.REFUSE):
                return meter.kind
        return None

    def _count(self, tokens: int, sign: int = 1) -> None:
        for meter in self.meters.values():
            meter.mine = max(0, meter.mine + sign * _cost(meter.kind, tokens))


def _cost(kind: Limit, tokens: int) -> int:
    return tokens if kind.counts_tokens else 1
