"""Bodies that engines failed on: how long each is refused. Pure, with the clock passed in.

A body gets a strike for each replica that was sent it and then lost the connection or answered 5xx. A replica strikes
a body once in `seconds`, since many copies of one body may be under way where an engine dies. At `strikes` of them the
body is in quarantine: it is refused for `seconds`, then it may be sent again, to one replica. If that replica fails
too, the next quarantine is twice as long, up to `cap`. One whole answer clears the body. A body without a new strike
for `memory` seconds is forgotten; of more than `bodies` the one whose last strike is oldest is.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from plumage_router.config import QuarantineConfig

__all__ = ["Quarantine"]


@dataclass(slots=True)
class _Case:
    """What is known of one body. `seconds`: of its last quarantine, 0 before the first; `until`: the end of it; `by`:
    when each replica struck last, of those that still count."""

    strikes: int = 0
    by: dict[str, float] = field(default_factory=dict)
    last: float = 0.0
    seconds: float = 0.0
    until: float = 0.0


class Quarantine:
    """By digest of the bytes that engines get. `begun`: quarantines begun, for the metrics."""

    def __init__(self, config: QuarantineConfig) -> None:
        self.config = config
        self.begun = 0
        self._cases: OrderedDict[bytes, _Case] = OrderedDict()

    def __len__(self) -> int:
        """Bodies with a strike, refused or not."""
        return len(self._cases)

    def refused(self, now: float) -> int:
        """Bodies in quarantine."""
        return sum(case.until > now for case in self._cases.values())

    def left(self, digest: bytes, now: float) -> float:
        """Seconds for which the body is refused; 0.0 when it may be sent."""
        case = self._cases.get(digest)
        return 0.0 if case is None else max(0.0, case.until - now)

    def strike(self, digest: bytes, replica: str, now: float) -> bool:
        """A replica failed on the body. True when the body is in quarantine, and so must be sent to no other."""
        case = self._case(digest, now)
        case.by = {name: at for name, at in case.by.items() if now - at < self.config.seconds}
        if replica not in case.by:
            case.by[replica] = now
            case.strikes += 1
        case.last = now
        if case.until <= now and case.strikes >= self.config.strikes:
            self._begin(case, now)
        return case.until > now

    def clear(self, digest: bytes) -> None:
        """The body got its whole answer."""
        self._cases.pop(digest, None)

    def _begin(self, case: _Case, now: float) -> None:
        config = self.config
        case.seconds = min(config.cap, 2 * case.seconds if case.seconds else config.seconds)
        case.until = now + case.seconds
        self.begun += 1

    def _case(self, digest: bytes, now: float) -> _Case:
        self._forget_old(now)
        case = self._cases.get(digest)
        if case is None:
            while len(self._cases) >= self.config.bodies:
                self._cases.popitem(last=False)
            case = self._cases[digest] = _Case()
        self._cases.move_to_end(digest)
        return case

    def _forget_old(self, now: float) -> None:
        """Cases are in the order of their last strike."""
        while self._cases:
            digest, case = next(iter(self._cases.items()))
            if max(case.last, case.until) + self.config.memory >= now:
                return
            del self._cases[digest]
