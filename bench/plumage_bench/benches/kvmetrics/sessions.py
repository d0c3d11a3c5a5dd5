"""Conversations up to a context length, from clients that never stop: the load of `kvmetrics`.

A conversation has 2, 4, 6 or 8 rounds (KVRouting App. A). The longest ends at the context length. A quarter of that is
the system prompt of one of eight applications, and a quarter of each round is the answer. The clients that are there at
the beginning are in the middle of their conversations, so a run need not wait until they are out of step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from plumage_bench.workloads import (
    Arrival,
    ArticleShape,
    ClosedLoop,
    MultiturnShape,
    Prompt,
    article_prompts,
    conversations,
)
from plumage_engine.simulator.engine.device import GPU

__all__ = [
    "APPLICATIONS", "BLOCK", "Ramp", "cold_rate", "doubling", "hit_ceiling", "mixed", "of_context", "saturating",
    "sessions", "steady",
]  # fmt: skip

BLOCK = 16
APPLICATIONS = 8
_ROUNDS = (2, 4, 6, 8)
_AT_ONCE = 1e9  # requests a second for a client that never waits for its place


def _shape(context: int, clients: int) -> MultiturnShape:
    system = context // 4
    of_round = (context - system) // max(_ROUNDS)
    return MultiturnShape(
        clients,
        rounds=_ROUNDS,
        input_tokens=of_round - of_round // 4,
        output_tokens=of_round // 4,
        system_tokens=system,
        block_size=BLOCK,
    )


def sessions(context: int, count: int, at_once: int, seed: int) -> list[list[Prompt]]:
    """About `count` conversations. The first `at_once` lack their beginning."""
    rng = random.Random(f"kvmetrics {context} {seed}")
    shape = _shape(context, -(-count // APPLICATIONS))
    made = [one for part in range(APPLICATIONS) for one in conversations(shape, 1000 * seed + part)]
    rng.shuffle(made)
    return [one[rng.randrange(len(one)) :] if place < at_once else one for place, one in enumerate(made)]


def of_context(context: int) -> list[Prompt]:
    """Prompts of complete conversations, to compute with."""
    return [prompt for one in conversations(_shape(context, 64), 0) for prompt in one]


def cold_rate(prompts: Sequence[Prompt], workers: int) -> float:
    """Requests a second whose prefill would take all time of the workers with cold caches, on the `gpu` preset."""
    each = [prompt.tokens * GPU.row + prompt.tokens**2 / 2 * GPU.pair for prompt in prompts]
    return workers * len(each) / sum(each)


def mixed(count: int, seed: int) -> list[Prompt]:
    """The article's changing mix: retrieval, code, agents, chats and summaries."""
    return article_prompts(ArticleShape("mix", count, BLOCK), seed)


def steady(context: int, rate: float, seconds: float, at_once: int, seed: int) -> ClosedLoop:
    """Clients that together send `rate` requests a second, for at least `seconds`."""
    fewest = min(_ROUNDS)
    return ClosedLoop(sessions(context, int(rate * seconds / fewest) + at_once, at_once, seed), rate, seed, at_once)


def saturating(context: int, count: int, at_once: int, seed: int) -> ClosedLoop:
    """`at_once` clients, each of which sends its next request when it has its answer."""
    return ClosedLoop(sessions(context, count, at_once, seed), _AT_ONCE, seed, at_once)


class Ramp:
    """Clients that begin at given times, and then send each request when they have their answer. Ended conversations
    are followed by others."""

    def __init__(self, waiting: Sequence[Sequence[Prompt]], starts: Sequence[float]) -> None:
        self._waiting = iter(waiting)
        self._starts = starts
        self._count = sum(len(one) for one in waiting)
        self._left: list[Iterator[Prompt]] = []

    def initial(self) -> Iterator[Arrival]:
        for client, at in enumerate(self._starts):
            self._left.append(iter(next(self._waiting)))
            yield Arrival(at, next(self._left[client]), client)

    def after(self, client: int, now: float) -> Arrival | None:
        prompt = next(self._left[client], None)
        while prompt is None:
            following = next(self._waiting, None)
            if following is None:
                return None
            self._left[client] = iter(following)
            prompt = next(self._left[client], None)
        return Arrival(now, prompt, client)

    def __len__(self) -> int:
        return self._count


def doubling(most: int, seconds: float) -> list[float]:
    """Start times with which the number of clients doubles each `seconds`, from one to `most`."""
    ends = [1 << step for step in range(most.bit_length())]
    added = [ends[0], *(after - before for before, after in pairwise(ends))]
    assert list(accumulate(added)) == ends
    return [step * seconds for step, count in enumerate(added) for _ in range(count)]


def hit_ceiling(waiting: Sequence[Sequence[Prompt]], uncounted: int = 0) -> float:
    """The share of prompt tokens that an endless cache would hold, each conversation in its order. The first ones fill
    the cache, and are not counted."""
    seen: set[int] = set()
    cached = tokens = 0
    for place, one in enumerate(waiting):
        for prompt in one:
            known = 0
            for block in prompt.blocks[: (prompt.tokens - 1) // BLOCK]:
                if block not in seen:
                    break
                known += BLOCK
            if place >= uncounted:
                cached += known
                tokens += prompt.tokens
            seen.update(prompt.blocks)
            seen.update(prompt.output_blocks)
    return cached / tokens
