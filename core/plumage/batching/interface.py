"""The waiting queue of an engine as every batching policy sees it, and the stop policy's question.

A queue owns two sets: *waiting* requests and *active* ones (admitted, not finished). The engine asks `select` for the
next request to admit; None means STOP for this step. The engine then reports what happened:

- `add`: the request was admitted. After `select`, missing blocks or the token budget may still prevent it.
- `finish`: an active request ended.
- `remove`: a waiting request was aborted.
- `requeue`: a request was preempted.

What is passed here is made at each request or step; named tuples, because a frozen dataclass takes three times as long.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple, Protocol

__all__ = [
    "BatchQueue",
    "BatchShape",
    "BatchState",
    "Candidate",
    "Decision",
    "RequestId",
    "StepOutcome",
    "StopPolicy",
    "Vector",
]

RequestId = Hashable
Level = int | bytes
Vector = tuple[Level, ...]
"""Cumulative chunk hashes, as integers or as an engine's own bytes."""


class Candidate(NamedTuple):
    """A request at INSERT.

    vector: cumulative chunk hashes; `vector[l]` is equal between two requests iff their first l+1 chunks are equal.
        Frozen here: an engine's own vector grows with the output. Empty means: shares with nobody.
    tokens: prompt length. arrival: seconds on the caller's clock. group: what a client says belongs
        together, for policies of your own; none of ours reads it.
    """

    request_id: RequestId
    vector: Vector
    tokens: int
    arrival: float
    group: Hashable | None = None


class BatchShape(NamedTuple):
    """What the requests of a batch read. requests: their number. levels: of all their prompts together. distinct: of
    these, the different ones. tip: levels that all requests share."""

    requests: int
    levels: int
    distinct: int
    tip: int


class StepOutcome(NamedTuple):
    """Time and tokens of an engine step: the reward of the decisions that formed its batch (FEATHER §4.3).

    finished: requests that ended with it; a queue counts them itself. steps: the number of steps that this sums up;
    only steps without prefill and without a decision between them are summed up. shape: of the batch that ran, for
    policies that set `reads_shape`."""

    seconds: float
    decode_tokens: int
    prefill_tokens: int = 0
    finished: int = 0
    steps: int = 1
    shape: BatchShape | None = None


class BatchState(NamedTuple):
    """What a stop policy sees.

    batch: running and admitted requests.
    depth: levels of the shared prefix's tip now. loss: those that it would lose.
    peers: other waiting requests at the depth after admission.
    siblings: the waiting requests that share most with the candidate.
    sibling_gain: levels that the candidate shares with them below the tip after admission.

    Three fields are for policies that set `reads_shape`:

    levels: of the candidate's prompt. missing: those that no request of the batch has.
    shape: of the batch now.
    """

    batch: int
    loss: int
    depth: int
    peers: int
    siblings: int = 0
    sibling_gain: int = 0
    levels: int = 0
    missing: int = 0
    shape: BatchShape | None = None

    @property
    def kept(self) -> int:
        """Levels of the tip after admission."""
        return self.depth - self.loss

    @property
    def dilutes(self) -> bool:
        """Whether the candidate shares more with its siblings than this batch would share with it."""
        return self.sibling_gain > self.kept

    @property
    def at_stake(self) -> bool:
        """Whether a STOP can pay: it protects a shared prefix, or leaves the candidate to a batch with its siblings.

        If neither holds, a STOP only makes the candidate wait.
        """
        return self.dilutes or (self.batch > 1 and self.loss > 0)


class Decision(Enum):
    ADD = "Add"
    STOP = "Stop"


class StopPolicy(Protocol):
    """ADD or STOP, learned from the throughput of the batches it formed."""

    def decide(self, state: BatchState) -> Decision: ...

    def observe(self, outcome: StepOutcome) -> None:
        """Credit `outcome` to the decisions taken since the last one; called once per step, in order."""
        ...


class BatchQueue(Protocol):
    """A waiting queue with a batching policy inside."""

    @property
    def active(self) -> int:
        """Requests admitted and not finished."""
        ...

    @property
    def tip_loss(self) -> int:
        """Levels of the prefix shared by all active requests that admissions have cost so far."""
        ...

    def __len__(self) -> int:
        """Waiting requests: the true number, also while the policy says STOP, or an engine believes it has no work."""
        ...

    def insert(self, candidate: Candidate) -> None: ...

    def select(self, now: float) -> RequestId | None:
        """The request to admit next, or None for STOP. Stable until the next mutation.

        Never None while requests wait and nothing is active. A request older than its bound goes first, whatever the
        policy decides: the result is then one of the overdue requests, or one of a turn.
        """
        ...

    def add(self, request_id: RequestId) -> None: ...

    def finish(self, request_id: RequestId) -> None: ...

    def remove(self, request_id: RequestId) -> None:
        """Drop a waiting request; absent ones are tolerated (an abort may come late)."""
        ...

    def requeue(self, request_id: RequestId) -> None:
        """Has a preempted active request wait again, ahead of all others."""
        ...

    def observe(self, outcome: StepOutcome) -> None: ...
