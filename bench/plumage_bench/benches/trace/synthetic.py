"""A synthetic trace in the format of a real one: conversations with shared system prompts.

Sessions start as a Poisson process. Each chooses a system prompt by Zipf's law, has a geometric number of turns, waits
between them for a log-normal time, and sends the whole history again with each turn. New text and answers have lengths
by Zipf's law. The structure is that of chat, but not its statistics: results are not valid for production.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate, count

from plumage_bench.benches.trace.mooncake import BLOCK, TracedRequest

__all__ = ["synthetic_trace"]

_SESSIONS_A_SECOND = 1.0
_SYSTEM_PROMPTS = 32
_SYSTEM_BLOCKS = (1, 8)  # fewest and most
_GO_ON = 0.7  # chance that another turn follows
_THINK_SECONDS = (3.4, 1.0)  # mu and sigma of the logarithm: a median of 30 s
_TURN_TOKENS, _ANSWER_TOKENS = 256, 24  # unit of the Zipf-distributed lengths
_LONGEST = 64  # units
_MOST_TOKENS = 64_000  # the longest conversation
_TOKENS_A_SECOND = 30.0  # tokens a second at which users read answers, for the time of the next turn


class _Zipf:
    """Ranks 1 … `most`; rank r has a probability ∝ 1/r."""

    def __init__(self, rng: random.Random, most: int) -> None:
        self._rng = rng
        self._ranks = range(1, most + 1)
        self._weights = list(accumulate(1 / rank for rank in self._ranks))

    def draw(self) -> int:
        return self._rng.choices(self._ranks, cum_weights=self._weights)[0]


class _Sessions:
    """Draws sessions. Block ids are new where the text is new."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"trace-{seed}")
        self._new_ids = count()
        self._length = _Zipf(self._rng, _LONGEST)
        self._popular = _Zipf(self._rng, _SYSTEM_PROMPTS)
        fewest, most = _SYSTEM_BLOCKS
        sizes = [self._rng.randint(fewest, most) for _ in range(_SYSTEM_PROMPTS)]
        self._systems = [tuple(next(self._new_ids) for _ in range(size)) for size in sizes]

    def starts(self) -> Iterator[float]:
        """An endless stream of start times of sessions."""
        now = 0.0
        while True:
            now += self._rng.expovariate(_SESSIONS_A_SECOND)
            yield now

    def session(self, at: float) -> Iterator[TracedRequest]:
        """The turns of one session."""
        held = self._systems[self._popular.draw() - 1]
        tokens = len(held) * BLOCK
        while True:
            tokens += self._tokens(_TURN_TOKENS)
            if tokens > _MOST_TOKENS:
                return
            blocks = self._extended(held, tokens)
            answer = self._tokens(_ANSWER_TOKENS)
            yield TracedRequest(round(at, 3), tokens, answer, blocks)
            if self._rng.random() > _GO_ON:
                return
            held = blocks[: tokens // BLOCK]
            tokens += answer
            at += answer / _TOKENS_A_SECOND + self._rng.lognormvariate(*_THINK_SECONDS)

    def _tokens(self, unit: int) -> int:
        return self._length.draw() * unit - self._rng.randrange(unit)

    def _extended(self, held: tuple[int, ...], tokens: int) -> tuple[int, ...]:
        new = -(-tokens // BLOCK) - len(held)
        return (*held, *(next(self._new_ids) for _ in range(new)))


def synthetic_trace(requests: int, seed: int) -> list[TracedRequest]:
    """The first `requests` requests of an endless stream of sessions, in time order."""
    sessions = _Sessions(seed)
    drawn: list[TracedRequest] = []
    for start in sessions.starts():
        # No later session has a request before its own start.
        if len(drawn) >= requests:
            drawn.sort(key=lambda request: request.at)
            if drawn[requests - 1].at <= start:
                return drawn[:requests]
        drawn.extend(sessions.session(start))
    raise AssertionError("sessions never end")
