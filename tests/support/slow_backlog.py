"""A slow model of a replica's backlog: the whole history, added up for each question (W of KVRouting, as Plumage keeps
it)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

__all__ = ["SlowBacklog", "SlowShare"]

MEMORY, TRUST, SURPRISE, LEAST_GAP = 0.98, 2.0, 10.0, 0.5


@dataclass(eq=False)
class SlowShare:
    tokens: float
    seen: bool = True


class SlowBacklog:
    """`waiting`: requests with work left, in the order of routing. `worked`: requests whose work should be done by the
    estimate, though no first token arrived. `lessons`: (gap, tokens, weight) of each first token."""

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.since = 0.0
        self.doubt = 0.0
        self.routed: list[SlowShare] = []
        self.waiting: list[SlowShare] = []
        self.worked: list[SlowShare] = []
        self.lessons: list[tuple[float, float, float]] = []

    @property
    def c_miss(self) -> float:
        seconds = sum(gap * weight for gap, _, weight in self.lessons)
        tokens = sum(tokens * weight for _, tokens, weight in self.lessons)
        return (seconds + TRUST * self.prior) / (tokens + TRUST)

    @property
    def front(self) -> list[SlowShare]:
        return list(takewhile(lambda share: not share.seen, self.waiting))

    @property
    def bounds(self) -> tuple[float, float]:
        if not self.waiting and not self.worked:
            return 0.0, 0.0
        left = sum(share.tokens for share in self.waiting) * self.c_miss
        rest = self.waiting[len(self.front) :]
        hidden = sum(share.tokens for share in rest) * (len(rest) - 1) / len(rest) if rest else 0.0
        doubtful = sum(share.tokens for share in self.front + self.worked)
        return self.since + left, (hidden + self.doubt * doubtful) * self.c_miss

    def add(self, share: SlowShare, now: float) -> None:
        while self.front and self.since + self.front[0].tokens * self.c_miss <= now:
            self.since += self.front[0].tokens * self.c_miss
            self.worked.append(self.waiting.pop(0))
        if not self.waiting:
            self.since = now
        self.waiting.append(share)
        self.routed.append(share)

    def past(self, share: SlowShare) -> list[SlowShare]:
        """Removes the work of earlier requests whose first token was not seen, and returns these requests."""
        before = self.routed[: self.routed.index(share)]
        passed = [one for one in before if one in self.waiting and not one.seen]
        self.waiting = [one for one in self.waiting if one not in passed]
        self.worked = [one for one in self.worked if one not in before and one is not share]
        return passed

    def first_token(self, share: SlowShare, now: float) -> float:
        tokens = share.tokens + sum(one.tokens for one in self.past(share))
        gap = now - self.since if now > self.since else 0.0
        gap = min(gap, SURPRISE * LEAST_GAP if self.c_miss * tokens < LEAST_GAP else SURPRISE * self.c_miss * tokens)
        self.lessons = [(seconds, size, weight * MEMORY) for seconds, size, weight in self.lessons]
        self.lessons.append((gap, tokens, 1.0))
        self.give_up(share, now)
        return gap

    def ended(self, share: SlowShare, now: float) -> None:
        self.past(share)
        self.give_up(share, now)

    def give_up(self, share: SlowShare, now: float) -> None:
        if share in self.waiting:
            self.waiting.remove(share)
            self.since = now
        elif share in self.worked:
            self.worked.remove(share)

    def fade(self) -> None:
        self.lessons = [(seconds, size, weight / 2.0) for seconds, size, weight in self.lessons]

    def start_from(self, c_miss: float, tokens: float, prior: float) -> None:
        self.lessons = [(c_miss * tokens, tokens, 1.0)]
        self.prior = prior
