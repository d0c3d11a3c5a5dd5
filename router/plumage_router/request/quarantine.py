"""Refuses request bodies that engines failed on, for a time. Pure, with the clock passed in.

- A body gets a strike for each replica that got it and then lost the connection or answered 5xx.
- A replica gives a body one strike in `seconds`, because many copies may be in flight when an engine dies.
- With `strikes` strikes the body is in quarantine: it is refused for `seconds`. Then one replica may get it again.
- If that replica fails too, the next quarantine is twice as long, up to `cap`. A complete answer clears the body.
- A body without a new strike for `memory` seconds is forgotten. At most `bodies` are remembered.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from plumage.settings.router_config import QuarantineConfig
from plumage_router.http.errors import quarantined
from plumage_router.request.prompt import Prompt

__all__ = ["Quarantine"]


@dataclass(slots=True)
class _Case:
    """One body. `seconds`: of its last quarantine, 0 before the first. `until`: the end of that quarantine.

    `by`: the time of the last strike of each replica, while it counts.
    """

    strikes: int = 0
    by: dict[str, float] = field(default_factory=dict)
    last: float = 0.0
    seconds: float = 0.0
    until: float = 0.0


class Quarantine:
    """`cases`: bodies with a strike, by the digest of the bytes that engines get. `begun`: number of quarantines.

    `seed`: of the digests, random so that no client can make another body with the same digest.
    """

    def __init__(self, config: QuarantineConfig) -> None:
        self.config = config
        self.seed = secrets.randbits(64)
        self.begun = 0
        self.cases: OrderedDict[bytes, _Case] = OrderedDict()

    def check(self, prompt: Prompt, now: float) -> None:
        """Raises RequestError while the body is refused because engines failed on it."""
        if left := self.left(prompt.digest_with(self.seed), now):
            raise quarantined(left)

    def failed(self, prompt: Prompt, replica: str, now: float) -> bool:
        """`strike` of a prompt's body."""
        return self.strike(prompt.digest_with(self.seed), replica, now)

    def answered(self, prompt: Prompt) -> None:
        """The prompt got a complete answer."""
        self.clear(prompt.digest_with(self.seed))

    def refused(self, now: float) -> int:
        """The number of bodies in quarantine."""
        return sum(case.until > now for case in self.cases.values())

    def left(self, digest: bytes, now: float) -> float:
        """Seconds for which the body is still refused; 0.0 if it may be sent."""
        case = self.cases.get(digest)
        return 0.0 if case is None else max(0.0, case.until - now)

    def strike(self, digest: bytes, replica: str, now: float) -> bool:
        """A replica failed on the body. Returns True if the body is in quarantine, so no other replica may get it."""
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
        """Clears a body that got a complete answer."""
        self.cases.pop(digest, None)

    def _begin(self, case: _Case, now: float) -> None:
        config = self.config
        case.seconds = min(config.cap, 2 * case.seconds if case.seconds else config.seconds)
        case.until = now + case.seconds
        self.begun += 1

    def _case(self, digest: bytes, now: float) -> _Case:
        self._forget_old(now)
        case = self.cases.get(digest)
        if case is None:
            while len(self.cases) >= self.config.bodies:
                self.cases.popitem(last=False)
            case = self.cases[digest] = _Case()
        self.cases.move_to_end(digest)
        return case

    def _forget_old(self, now: float) -> None:
        """Forgets old cases. They are in the order of their last strike."""
        while self.cases:
            digest, case = next(iter(self.cases.items()))
            if max(case.last, case.until) + self.config.memory >= now:
                return
            del self.cases[digest]
