"""The interface of routing policies: the choice of a replica, and the outcomes that a policy gets afterwards.

Replicas are *slots*: small integers, stable while a replica lives, reused after. A policy keeps its own arrays by slot.
Times are seconds on the caller's clock, tokens are tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Choice", "Query", "Randomness", "ReplicaState", "RoutingPolicy", "Ticket"]


class Randomness(Protocol):
    """What policies need of `random.Random`; passed in, so that a run repeats by its seed."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...


@dataclass(slots=True)
class ReplicaState:
    """What the router knows of one replica when a request arrives. `routed`: its own requests in flight there.

    The other values are the engine's last report and may be stale or absent (zero)."""

    slot: int
    routed: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prefill_tokens: float = 0.0  # routed and not yet past their first token: prompt tokens still to compute
    decode_blocks: float = 0.0  # KV blocks of the requests routed there and not finished
    foreign_work: float = 0.0  # seconds of work that other routers have in flight there (shared through the directory)


@dataclass(slots=True)
class Query:
    """One request. `hits`: tokens of its prefix each slot holds (absent = 0), from the directory. `chunks`: its
    byte-chunk chain. `text`: the rendered prompt, for policies that look at characters. `stream`: its first token will
    be seen; of an answer in one piece only the end is. `ends`: the size of the first n chunks of any prompt, by n from
    0, in a unit of which a prompt's first chunk has some; empty where all chunks have one size."""

    now: float
    tokens: float
    hits: Mapping[int, float]
    chunks: Sequence[int] = ()
    text: bytes = b""
    stream: bool = True
    ends: Sequence[int] = ()


@dataclass(slots=True)
class Ticket:
    """One routed request, handed back to the policy with its outcome. `state` is the policy's own.
    `predicted_latency`: seconds to the end of the answer; None until the policy learned it from answers."""

    slot: int
    routed_at: float
    tokens: float
    hit_tokens: float
    predicted_ttft: float | None = None
    predicted_latency: float | None = None
    state: Any = field(default=None, repr=False)


@dataclass(slots=True)
class Choice:
    """The slot chosen. `scores`: each candidate's score in candidate order (lower is better), kept for explanations.
    `considered`: the candidates that were scored, in the order of their scores, where not all were."""

    slot: int
    scores: Sequence[float] = ()
    considered: Sequence[ReplicaState] = ()


class RoutingPolicy(Protocol):
    """A policy gets every change of the slots. `replicas` is never empty, and a passed list does not change."""

    name: str

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
        """The slot's replica was deleted. A new one may get the number."""
        ...
