"""The interface of routing policies: the choice of a replica, and the outcomes that a policy gets afterwards.

Replicas are *slots*: small integers, stable while a replica lives, reused after. A policy keeps its own arrays by slot.
Times are seconds on the caller's clock, tokens are tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

__all__ = ["Choice", "Query", "Randomness", "ReplicaState", "RoutingPolicy", "Ticket"]


class Randomness(Protocol):
    """The methods of `random.Random` that policies use. It is a parameter, so that a seed repeats a run."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...


@dataclass(slots=True)
class ReplicaState:
    """What the router knows of one replica when a request arrives. routed: this router's requests in flight there.
    starting: those of them without a first token, as far as it can be seen or predicted. starting_work: in tokens
    to compute, and `queueing.start_window.REQUEST` for each.

    The other values are the engine's last report. They may be stale, or zero where the report is missing."""

    slot: int
    routed: int = 0
    starting: int = 0
    starting_work: float = 0.0
    running: int = 0
    waiting: int = 0
    held_back: int = 0  # waiting requests that FEATHER holds back on purpose
    kv_usage: float = 0.0
    prefill_tokens: float = 0.0  # prompt tokens to compute for routed requests without a first token
    decode_blocks: float = 0.0  # KV blocks of the requests routed there and not finished
    foreign_work: float = 0.0  # seconds of work that other routers have in flight there (shared through the directory)


# A dataclass' own `__init__` is never compiled, so those that each request makes have one that is written out.
@dataclass(slots=True, init=False)
class Query:
    """One request.

    hits: slot → tokens of the prompt's prefix that its replica holds, by the directory; absent means 0.
    chunks: the chain of the prompt's chunks.
    text: the rendered prompt, for policies that read characters.
    stream: whether its first token will be visible. An answer in one piece shows only its end.
    ends: by n from 0, the size of the first n chunks of any prompt, in pieces. Empty if all chunks have one size.
    cached_chunks: how many chunks the replica with the longest prefix holds.
    """

    now: float
    tokens: float
    hits: Mapping[int, float]
    chunks: Sequence[int]
    text: bytes
    stream: bool
    ends: Sequence[int]
    cached_chunks: int

    def __init__(
        self,
        now: float,
        tokens: float,
        hits: Mapping[int, float],
        chunks: Sequence[int] = (),
        text: bytes = b"",
        stream: bool = True,
        ends: Sequence[int] = (),
        cached_chunks: int = 0,
    ) -> None:
        self.now, self.tokens, self.hits, self.chunks = now, tokens, hits, chunks
        self.text, self.stream, self.ends, self.cached_chunks = text, stream, ends, cached_chunks


@dataclass(slots=True, init=False)
class Ticket:
    """One routed request. The policy gets it again with the outcome.

    state: belongs to the policy.
    predicted_latency: seconds to the end of the answer; None until the policy has learned it from answers.
    """

    slot: int
    routed_at: float
    tokens: float
    hit_tokens: float
    predicted_ttft: float | None
    predicted_latency: float | None
    state: Any = field(repr=False)

    def __init__(
        self,
        slot: int,
        routed_at: float,
        tokens: float,
        hit_tokens: float,
        predicted_ttft: float | None = None,
        predicted_latency: float | None = None,
        state: Any = None,
    ) -> None:
        self.slot, self.routed_at, self.tokens, self.hit_tokens = slot, routed_at, tokens, hit_tokens
        self.predicted_ttft, self.predicted_latency, self.state = predicted_ttft, predicted_latency, state


@dataclass(slots=True, init=False)
class Choice:
    """The chosen slot.

    scores: one score for each candidate, in their order; the lowest wins. Explanations show them.
    considered: the scored candidates, in the order of `scores`; empty if all candidates were scored.
    """

    slot: int
    scores: Sequence[float]
    considered: Sequence[ReplicaState]

    def __init__(self, slot: int, scores: Sequence[float] = (), considered: Sequence[ReplicaState] = ()) -> None:
        self.slot, self.scores, self.considered = slot, scores, considered


class RoutingPolicy(Protocol):
    """A routing policy. `replicas` is never empty, and a list does not change after the call."""

    name: ClassVar[str]

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice: ...

    def routed(self, query: Query, choice: Choice) -> Ticket:
        """The router sends the request to `choice.slot`. The policy counts its work from now on."""
        ...

    def first_token(self, ticket: Ticket, now: float) -> None:
        """Called for streams only."""
        ...

    def finished(self, ticket: Ticket, now: float, cached_tokens: float | None) -> None:
        """The request succeeded. cached_tokens: the engine's own count, if it reported one."""
        ...

    def failed(self, ticket: Ticket, now: float) -> None:
        """The request ended without an answer (error, abort, lost replica). Its work is subtracted."""
        ...

    def forget(self, slot: int) -> None:
        """Forgets the slot, whose replica was deleted. A new one may get the number."""
        ...
