"""Replays prompts in order through one engine's cache; the requests of a batch use their blocks at the same time.

There is no device and no clock: time is the index of the prompt. A request uses its prompt and output blocks until one
of three things happens: it is the oldest of a full batch, a newer request needs the room, or its own conversation
continues. The hit ratio is cached ÷ all prompt tokens.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.pool import BlockPool
from plumage.errors import ConfigurationError
from plumage_bench.baselines.eviction import make_policy
from plumage_bench.baselines.eviction.belady import Belady, future_of
from plumage_bench.benches.eviction.workloads import BLOCK, Workload
from plumage_bench.workloads import Prompt

__all__ = ["Outcome", "policy_for", "replay"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """hit_ratio: cached ÷ all prompt tokens. misses: prompt blocks computed. running: mean number of concurrent
    requests."""

    hit_ratio: float
    misses: int
    running: float


@dataclass(slots=True)
class _Running:
    prompt: Prompt
    anonymous: int


def policy_for(name: str, work: Workload, seed: int) -> EvictionPolicy:
    """A policy by name. Belady knows the future requests. The time to live of TTL is a twentieth of the prompts."""
    if name == "Belady":
        return Belady(future_of([[*prompt.blocks, *prompt.output_blocks] for prompt in work.prompts]))
    options = {"ttl": max(1.0, len(work.prompts) / 20)} if name == "Ttl" else {}
    return make_policy(name, capacity=work.capacity, rng=random.Random(seed), **options)


def replay(work: Workload, policy: EvictionPolicy) -> Outcome:
    """Serve the workload, starting with an empty cache."""
    pool = BlockPool(work.capacity, policy)
    running: deque[_Running] = deque()
    hit = total = misses = held = 0
    for now, prompt in enumerate(work.prompts):
        if work.turns:
            _end_turn(pool, running, prompt.group, now)
        if len(running) >= work.batch:
            _finish(pool, running.popleft(), now)
        known = _start(pool, running, prompt, now)
        hit += known * BLOCK
        total += prompt.tokens
        misses += len(prompt.blocks) - known
        held += len(running)
    return Outcome(hit / total, misses, held / len(work.prompts))


def _end_turn(pool: BlockPool, running: deque[_Running], group: int, now: int) -> None:
    for request in list(running):
        if request.prompt.group == group:
            running.remove(request)
            _finish(pool, request, now)


def _start(pool: BlockPool, running: deque[_Running], prompt: Prompt, now: int) -> int:
    """Pin, allocate and compute. While there is no room the oldest requests end first. Returns the cached blocks."""
    blocks = prompt.blocks
    output = -(-prompt.output_tokens // BLOCK)
    while True:
        known = pool.pin(blocks, now)
        if pool.allocate(len(blocks) - known + output, now):
            break
        pool.release(blocks[:known], 0, now)
        if not running:
            raise ConfigurationError(f"a prompt of {len(blocks)} blocks does not fit into {pool.capacity}")
        _finish(pool, running.popleft(), now)
    pool.commit(blocks[known:], blocks[known - 1] if known else None, now)
    running.append(_Running(prompt, output))
    return known


def _finish(pool: BlockPool, request: _Running, now: int) -> None:
    """The answer is complete. The blocks that it filled are cached below the prompt's."""
    prompt = request.prompt
    answered = prompt.output_blocks[: request.anonymous]
    pool.commit(answered, prompt.blocks[-1], now)
    pool.release([*prompt.blocks, *answered], request.anonymous - len(answered), now)
