"""What a tenant used of its limits, and what one of several routers may still admit.

The routers of a pool count together. Each publishes its own number for a limit, and reads the numbers of the others.
The number is absolute, so a message that is sent twice does no harm. No request waits for such an exchange while the
router has a share of what is left. The share is small, so the routers together stay within the limit. Beyond it the
router counts the request first, exchanges, and then admits it if the sum is within the limit.

While the directory does not answer, each router admits an equal part of what was left.

A window begins with the clock's minute, or with the day in UTC. Routers with different clocks have different windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, NamedTuple

__all__ = ["Ask", "Limit", "Meter", "QuotaDecision", "QuotaRefusal", "Sharing", "Taken", "TenantUse"]

FRESH: Final = 0.1  # seconds for which the numbers of other routers count as recent
RECHECK: Final = 1.0  # seconds after which a router that refuses requests asks again
STALE_SHARE: Final = 1 / 200  # of the limit: what a router admits before it has heard of the others again
SILENCE: Final = 15.0  # seconds after which the requests in flight of a silent router are forgotten
RENEWAL: Final = 5.0  # seconds between repeated messages while requests are in flight …
LATER_RENEWAL: Final = 60.0  # … and while only a window counts, in case the server lost the numbers
MOST_ROUTERS: Final = 4096  # whose numbers of one window are kept: each restart of a router adds one
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


class QuotaDecision(Enum):
    """ASK: the other routers' numbers decide."""

    ADMIT = "admit"
    ASK = "ask"
    REFUSE = "refuse"


# As in `routing/interface.py`, what each request makes has a written `__init__`, which is compiled. A tuple has none.
@dataclass(slots=True, init=False)
class Sharing:
    """answers: the directory answers. routers: of the pool, with this one. wall: seconds since 1970. now: seconds of a
    monotonic clock."""

    answers: bool
    routers: int
    wall: float
    now: float

    def __init__(self, answers: bool, routers: int, wall: float, now: float) -> None:
        self.answers, self.routers, self.wall, self.now = answers, routers, wall, now


@dataclass(slots=True, init=False)
class Taken:
    """What was counted for a request, and the windows in which it was counted."""

    tokens: int
    windows: Mapping[Limit, int]

    def __init__(self, tokens: int, windows: Mapping[Limit, int]) -> None:
        self.tokens, self.windows = tokens, windows


class QuotaRefusal(NamedTuple):
    """limit: the one that refuses. most: its value. seconds: until it is worth trying again; None if the request needs
    more than the limit. by_share: the limit has room, but this router's share of it has none."""

    limit: Limit
    most: int
    seconds: int | None
    by_share: bool


@dataclass(slots=True)
class Meter:
    """What one tenant used of one limit, whether or not there is such a limit now.

    mine: what this router counted in the window. published: of that, what the others know. others: their numbers and
    when each was written, by router. read_at: when they were read. window: its number since 1970, 0 without windows.
    """

    kind: Limit
    mine: int = 0
    published: int = 0
    others: dict[str, tuple[int, float]] = field(default_factory=dict)
    read_at: float = -math.inf
    window: int = 0
    counts_tokens: bool = field(init=False)  # as its kind says; a request asks for it dozens of times

    def __post_init__(self) -> None:
        self.counts_tokens = self.kind.counts_tokens

    def cost(self, tokens: int) -> int:
        """What a request of so many tokens counts here."""
        return tokens if self.counts_tokens else 1

    def roll(self, wall: float) -> None:
        """Begins a new window if the clock says so. A clock that was put back begins none."""
        seconds = self.kind.seconds
        if seconds is not None and (window := int(wall // seconds)) > self.window:
            self.window, self.mine, self.published, self.others, self.read_at = window, 0, 0, {}, -math.inf

    def used(self, wall: float) -> int:
        """Returns the use of all routers, as far as this one knows."""
        return self.mine + self._used_elsewhere(wall)

    def has_room(self, cost: int, limit: int, wall: float) -> bool:
        """Whether a request of this cost is within the limit, as far as this router knows."""
        return self.mine + cost + self._used_elsewhere(wall) <= limit

    def _used_elsewhere(self, wall: float) -> int:
        if not self.others:
            return 0
        if self.kind.seconds is not None:
            return sum(number for number, _ in self.others.values())
        return sum(number for number, at in self.others.values() if abs(wall - at) <= SILENCE)

    def decide(self, cost: int, limit: int, sharing: Sharing) -> QuotaDecision:
        """Whether a request of this cost fits."""
        elsewhere, age = self._used_elsewhere(sharing.wall), sharing.now - self.read_at
        at_once = self.kind.seconds is None
        if self.mine + elsewhere + cost > limit:
            # The others' requests in flight end, and what they counted for requests that they then refused is free.
            old = age > (FRESH if at_once else RECHECK)
            return QuotaDecision.ASK if sharing.answers and old and self.mine + cost <= limit else QuotaDecision.REFUSE
        pending, left = self.mine - self.published, limit - self.published - elsewhere
        if not sharing.answers:
            fits = pending <= 0 or pending + cost <= left / sharing.routers
            return QuotaDecision.ADMIT if fits else QuotaDecision.REFUSE
        if age <= FRESH or at_once:
            share = left / (2 * sharing.routers + 2)
        else:
            share = cost if pending <= 0 else limit * STALE_SHARE
        return QuotaDecision.ADMIT if pending + cost <= share else QuotaDecision.ASK

    def refusal(self, cost: int, limit: int, sharing: Sharing) -> QuotaRefusal:
        """Why and for how long it refuses a request of this cost."""
        seconds = self.kind.seconds
        if cost > limit:
            return QuotaRefusal(self.kind, limit, None, False)
        if self.used(sharing.wall) + cost <= limit:
            return QuotaRefusal(self.kind, limit, 1, True)
        left = 1 if seconds is None else max(1, math.ceil(seconds - sharing.wall % seconds))
        return QuotaRefusal(self.kind, limit, left, False)

    def read(self, numbers: Mapping[str, tuple[int, float]], published: int, sharing: Sharing) -> None:
        """Takes the other routers' numbers: router → (number, when it was written, seconds since 1970).

        A number that is not there any more was lost with the server. Its router publishes it again later.
        """
        self.published, self.read_at = published, sharing.now
        self.others.update(numbers)
        if self.kind.seconds is None:
            silent = [name for name, (_, at) in self.others.items() if abs(sharing.wall - at) > SILENCE]
            for name in silent:
                del self.others[name]
        for name in sorted(self.others, key=lambda name: self.others[name][1])[:-MOST_ROUTERS]:
            del self.others[name]

    def is_due(self, now: float) -> bool:
        """Whether the other routers do not know the number, or may have lost it."""
        renewal = RENEWAL if self.kind.seconds is None else LATER_RENEWAL
        return self.mine != self.published or (self.mine > 0 and now - self.read_at > renewal)


@dataclass(slots=True, eq=False)
class Ask:
    """A request that waits for the other routers' numbers. decided: called with what refuses it, or None.

    since: seconds of a monotonic clock. published: the others can see that it is counted.
    """

    taken: Taken
    since: float
    decided: Callable[[QuotaRefusal | None], None]
    published: bool = False


@dataclass(slots=True, eq=False)
class TenantUse:
    """One tenant in one router. `running`: its requests that are counted. `asks`: of these, the ones that wait."""

    limits: Mapping[Limit, int]
    meters: dict[Limit, Meter] = field(default_factory=lambda: {kind: Meter(kind) for kind in Limit})
    running: int = 0
    asks: list[Ask] = field(default_factory=list)
    minute: int = 0  # in which the windows were last looked at; each begins with one

    def roll(self, wall: float) -> None:
        if (minute := int(wall // MINUTE)) > self.minute:
            self.minute = minute
            for meter in self.meters.values():
                meter.roll(wall)

    def refusal(self, tokens: int, sharing: Sharing) -> QuotaRefusal | None:
        """The limit that refuses a request for the longest time; None if no limit refuses it. Counts nothing."""
        self.roll(sharing.wall)
        meters = self.meters
        if sharing.answers and self._has_room(tokens, sharing.wall):
            return None
        found = [
            meter.refusal(meter.cost(tokens), limit, sharing)
            for kind, limit in self.limits.items()
            if (meter := meters[kind]).decide(meter.cost(tokens), limit, sharing) is QuotaDecision.REFUSE
        ]
        return max(found, key=lambda one: math.inf if one.seconds is None else one.seconds, default=None)

    def _has_room(self, tokens: int, wall: float) -> bool:
        """Whether the request is within every limit. A loop: compiled, it costs a third of a generator."""
        for kind, limit in self.limits.items():
            meter = self.meters[kind]
            if not meter.has_room(meter.cost(tokens), limit, wall):
                return False
        return True

    def take(self, tokens: int, sharing: Sharing) -> tuple[Taken, bool] | QuotaRefusal:
        """Counts a request unless it is refused. True: the other routers must be asked, by an `Ask`.

        tokens: of prompt and answer, as far as they are known.
        """
        refused = self.refusal(tokens, sharing)
        if refused is not None:
            return refused
        asks = any(
            (meter := self.meters[kind]).decide(meter.cost(tokens), limit, sharing) is QuotaDecision.ASK
            for kind, limit in self.limits.items()
        )
        return self._count(tokens), asks

    def end(self, taken: Taken, tokens: int, wall: float) -> None:
        """Ends a request. tokens: its actual use.

        What it used beyond the estimate counts in the window of its end. What it did not use is free only in the window
        in which it was counted.
        """
        self.roll(wall)
        self.running -= 1
        for kind, meter in self.meters.items():
            if kind is Limit.CONCURRENT_REQUESTS:
                meter.mine = max(0, meter.mine - 1)
            elif meter.counts_tokens:
                more = tokens - taken.tokens
                if more > 0 or meter.window == taken.windows[kind]:
                    meter.mine = max(0, meter.mine + more)

    def withdraw(self, ask: Ask) -> None:
        """Removes a waiting request that ended before it was decided."""
        if ask in self.asks:
            self.asks.remove(ask)
            self._uncount(ask.taken)

    def decide_asks(self, sharing: Sharing, *, waiting_s: float) -> list[tuple[Ask, QuotaRefusal | None]]:
        """Decides the asks that the other routers could see. An ask from an earlier window waits once more.

        Without the directory, and for an ask that waited longer than `waiting_s`, this router's share decides.
        """
        self.roll(sharing.wall)
        alone = Sharing(False, sharing.routers, sharing.wall, sharing.now)
        ripe = []
        for ask in self.asks:
            late = not sharing.answers or sharing.now - ask.since > waiting_s
            if late or ask.published:
                same = all(meter.window == ask.taken.windows[kind] for kind, meter in self.meters.items())
                if late or same:
                    ripe.append(ask)
                else:
                    self._uncount(ask.taken)
                    ask.taken, ask.published = self._count(ask.taken.tokens), False
        self.asks = [ask for ask in self.asks if ask not in ripe]
        for ask in ripe:
            self._uncount(ask.taken)
        decided = []
        for ask in ripe:
            late = sharing.now - ask.since > waiting_s
            refused = self._refused(ask.taken.tokens, alone if late else sharing)
            if refused is None:
                ask.taken = self._count(ask.taken.tokens)
            decided.append((ask, refused))
        return decided

    def due(self, sharing: Sharing) -> list[Meter]:
        """The meters with a limit whose numbers must be published; all of them while a request waits."""
        self.roll(sharing.wall)
        meters = [self.meters[kind] for kind in self.limits]
        return meters if self.asks else [meter for meter in meters if meter.is_due(sharing.now)]

    @property
    def idle(self) -> bool:
        """Whether nothing of it must be remembered."""
        return not self.running and all(not meter.mine for meter in self.meters.values())

    def _refused(self, tokens: int, sharing: Sharing) -> QuotaRefusal | None:
        if not sharing.answers:
            return self.refusal(tokens, sharing)
        for kind, limit in self.limits.items():
            meter = self.meters[kind]
            cost = meter.cost(tokens)
            if meter.used(sharing.wall) + cost > limit:
                return meter.refusal(cost, limit, sharing)
        return None

    def _count(self, tokens: int) -> Taken:
        self.running += 1
        for meter in self.meters.values():
            meter.mine += meter.cost(tokens)
        return Taken(tokens, {kind: meter.window for kind, meter in self.meters.items()})

    def _uncount(self, taken: Taken) -> None:
        self.running -= 1
        for kind, meter in self.meters.items():
            if meter.window == taken.windows[kind]:
                meter.mine = max(0, meter.mine - meter.cost(taken.tokens))
