"""Arrival times of requests: an open Poisson process, or clients that wait for their answers.

A source returns the arrivals that it knows at the start, and may add one more after each finished request.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from plumage_bench.workloads.prompts import Prompt

__all__ = ["Arrival", "ClosedLoop", "OpenLoop", "Source", "Timed"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """The finished request has the same `client`."""

    at: float
    prompt: Prompt
    client: int


class Source(Protocol):
    def initial(self) -> Iterator[Arrival]:
        """The arrivals known at the start, in time order."""
        ...

    def after(self, client: int, now: float) -> Arrival | None:
        """The client's last request has ended. Returns its next request, not earlier than `now`."""
        ...

    def __len__(self) -> int: ...


class OpenLoop:
    """Prompts in order, at Poisson times of `rate` a second, independent of the fleet."""

    def __init__(self, prompts: Sequence[Prompt], rate: float, seed: int) -> None:
        self._prompts = prompts
        self._rate = rate
        self._seed = seed

    def initial(self) -> Iterator[Arrival]:
        rng = random.Random(f"arrivals-{self._seed}")
        now = 0.0
        for client, prompt in enumerate(self._prompts):
            # The same draws at any rate, so that two rates differ only in the clock.
            now += rng.expovariate(1.0) / self._rate
            yield Arrival(now, prompt, client)

    def after(self, client: int, now: float) -> Arrival | None:
        return None

    def __len__(self) -> int:
        return len(self._prompts)


class Timed:
    """Arrivals with given times, as in a trace."""

    def __init__(self, arrivals: Sequence[tuple[float, Prompt]]) -> None:
        self._arrivals = arrivals

    def initial(self) -> Iterator[Arrival]:
        for client, (at, prompt) in enumerate(self._arrivals):
            yield Arrival(at, prompt, client)

    def after(self, client: int, now: float) -> Arrival | None:
        return None

    def __len__(self) -> int:
        return len(self._arrivals)


class ClosedLoop:
    """Conversations. A client is ready after its answer. Ready clients wait, first come first served, for the next time
    of a Poisson process of `rate` a second. With `at_once` further clients begin as the first ones end."""

    def __init__(
        self, conversations: Sequence[Sequence[Prompt]], rate: float, seed: int, at_once: int | None = None
    ) -> None:
        self._conversations = conversations
        self._rate = rate
        self._rng = random.Random(f"arrivals-{seed}")
        self._next_round = [0] * len(conversations)
        self._next_place = 0.0
        count = len(conversations)
        self._first = count if at_once is None else min(at_once, count)
        self._waiting = iter(range(self._first, count))

    def initial(self) -> Iterator[Arrival]:
        for client in range(self._first):
            yield self._place(client, 0.0)

    def after(self, client: int, now: float) -> Arrival | None:
        if self._next_round[client] < len(self._conversations[client]):
            return self._place(client, now)
        following = next(self._waiting, None)
        return None if following is None else self._place(following, now)

    def _place(self, client: int, ready: float) -> Arrival:
        at = max(self._next_place, ready)
        self._next_place = at + self._rng.expovariate(self._rate)
        prompt = self._conversations[client][self._next_round[client]]
        self._next_round[client] += 1
        return Arrival(at, prompt, client)

    def __len__(self) -> int:
        return sum(len(rounds) for rounds in self._conversations)
