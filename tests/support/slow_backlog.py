"""A replica's backlog as a slow model: the whole history, added up at each question (KVRouting's W as we keep it)."""

from __future__ import annotations

__all__ = ["SlowBacklog"]

MEMORY, TRUST, SURPRISE, LEAST_GAP = 0.98, 2.0, 10.0, 0.5


class SlowBacklog:
    """`waiting`: thousand tokens of each request without a first token. `lessons`: (gap, tokens, weight)."""

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.since = 0.0
        self.waiting: list[float] = []
        self.lessons: list[tuple[float, float, float]] = []

    @property
    def c_miss(self) -> float:
        seconds = sum(gap * weight for gap, _, weight in self.lessons)
        tokens = sum(tokens * weight for _, tokens, weight in self.lessons)
        return (seconds + TRUST * self.prior) / (tokens + TRUST)

    @property
    def bounds(self) -> tuple[float, float]:
        if not self.waiting:
            return 0.0, 0.0
        left = sum(self.waiting) * self.c_miss
        return self.since + left, left * (len(self.waiting) - 1) / len(self.waiting)

    def add(self, tokens: float, now: float) -> None:
        if not self.waiting:
            self.since = now
        self.waiting.append(tokens)

    def first_token(self, tokens: float, now: float) -> float:
        gap = now - self.since if now > self.since else 0.0
        gap = min(gap, SURPRISE * LEAST_GAP if self.c_miss * tokens < LEAST_GAP else SURPRISE * self.c_miss * tokens)
        self.lessons = [(seconds, size, weight * MEMORY) for seconds, size, weight in self.lessons]
        self.lessons.append((gap, tokens, 1.0))
        self.give_up(tokens, now)
        return gap

    def give_up(self, tokens: float, now: float) -> None:
        self.waiting.remove(tokens)
        self.since = now

    def fade(self) -> None:
        self.lessons = [(seconds, size, weight / 2.0) for seconds, size, weight in self.lessons]

    def start_from(self, c_miss: float, tokens: float, prior: float) -> None:
        self.lessons = [(c_miss * tokens, tokens, 1.0)]
        self.prior = prior
