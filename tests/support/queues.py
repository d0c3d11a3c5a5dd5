"""Queues, candidates and a stop policy for tests of waiting queues."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

from plumage.batching import BatchState, Candidate, Decision, StepOutcome
from plumage_bench.baselines.batching import make_queue

__all__ = ["Never", "candidate", "queue", "vector"]


class Never:
    """A stop policy that always stops."""

    def decide(self, state: BatchState) -> Decision:
        return Decision.STOP

    def observe(self, outcome: StepOutcome) -> None:
        pass


def queue(policy: str, **options: object) -> Any:
    """A queue of the product or a baseline, with a fixed seed."""
    return make_queue(policy, rng=random.Random(3), **options)


def vector(text: str) -> tuple[int, ...]:
    """A cumulative vector with one level per character: equal at level l iff the first l characters are equal."""
    return tuple(hash(text[: i + 1]) & 0xFFFF_FFFF for i in range(len(text)))


def candidate(name: Hashable, text: str = "aaaa", arrival: float = 0.0, group: str | None = None) -> Candidate:
    """A waiting request with one level of 64 tokens per character; its group is the first character."""
    return Candidate(name, vector(text), 64 * len(text), arrival, group or text[:1])
