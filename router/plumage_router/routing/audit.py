"""Records why each of the last requests went to its replica: a bounded ring, searchable by request id.

A record keeps references to the inputs of the decision, which are small lists, and becomes text only on request. It
contains no prompt.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumage.routing.adapters import AdapterState
from plumage.routing.interface import ReplicaState
from plumage_router.fleet.replicas import Load
from plumage_router.http.errors import Failure
from plumage_router.routing.decider import Decision
from plumage_router.routing.prefix_breaks import PrefixBreak
from plumage_router.routing.shadow import ShadowChoice

__all__ = ["Audit", "Record"]

_MAX_CANDIDATES = 16  # kept of a large fleet: those with the best scores
_ADAPTER = {
    AdapterState.LOADED: "its adapter is loaded there",
    AdapterState.FREE_SLOT: "there is a free slot for its adapter",
    AdapterState.WAITS: "no replica has a slot for its adapter, which waits there",
}


@dataclass(slots=True, init=False)
class Record:
    """One request. Times are seconds. `ttft`: None for an answer that is not a stream.

    `outcome`: Running | Retried | Finished | Failed | Aborted | Truncated.
    """

    request_id: str
    at: float
    model: str
    tenant: str
    policy: str
    replica: str
    tokens: float
    hit_tokens: float
    chunks: int
    matched_chunks: int
    predicted_ttft: float | None
    predicted_latency: float | None
    fleet: Sequence[ReplicaState]  # the best candidates
    hits: Mapping[int, float]  # prompt tokens in each slot's cache
    scores: Sequence[float]  # of each candidate, if the policy has scores
    stream: bool
    considered: int
    available: int
    degraded: bool
    decision_seconds: float
    waited_seconds: float  # until a replica had room
    failures: list[tuple[str, Failure]]  # replica and reason
    outcome: str
    ttft: float | None
    latency: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    adapter_state: AdapterState | None  # None for the base model
    prefix_break: PrefixBreak | None
    shadow: dict[str, Any] | None  # what a second policy would have done

    def __init__(
        self, decision: Decision, *, request_id: str, at: float, tenant: str, policy: str, degraded: bool
    ) -> None:
        """A decision was made. The other fields are set while the request is served."""
        prompt, ticket = decision.prompt, decision.ticket
        self.request_id, self.at, self.model = request_id, at, prompt.model
        self.tenant, self.policy, self.degraded = tenant, policy, degraded
        self.replica = _name(decision.load)
        self.tokens, self.hit_tokens = decision.tokens, ticket.hit_tokens
        self.chunks, self.matched_chunks = len(prompt.chunks), decision.depth
        self.stream = prompt.stream
        self.predicted_ttft, self.predicted_latency = ticket.predicted_ttft, ticket.predicted_latency
        self.considered, self.available = len(decision.considered), decision.candidates
        self.fleet, self.scores, self.hits = decision.considered, decision.scores, decision.hits
        if self.considered > _MAX_CANDIDATES:
            self.fleet, self.scores = _best(self.fleet, self.scores)
        self.decision_seconds = self.waited_seconds = 0.0
        self.failures, self.outcome = [], "Running"
        self.adapter_state = decision.adapter_state
        self.prefix_break, self.shadow = None, _shadow(decision.shadow)
        self.ttft = self.latency = self.prompt_tokens = self.cached_tokens = self.output_tokens = None

    @property
    def candidates(self) -> list[tuple[str, float, float | None]]:
        """The best candidates: name, prompt tokens in its cache, score."""
        scores: Sequence[float | None] = self.scores or [None] * len(self.fleet)
        return [(_name(s), self.hits.get(s.slot, 0.0), score) for s, score in zip(self.fleet, scores, strict=True)]

    def why(self) -> str:
        """The reason for the decision, as one line for people."""
        why, broken = self._why_chosen(), self.prefix_break
        if self.adapter_state is not None:
            why += f"; {_ADAPTER[self.adapter_state]}"
        if broken is None:
            return why
        return f"{why}; its early bytes changed ({broken.cause}), which lost ~{broken.lost_tokens} cached tokens"

    def _why_chosen(self) -> str:
        if self.failures:
            failed = ", ".join(f"{replica}: {reason.text}" for replica, reason in self.failures)
            return f"retried after {failed}"
        best = max((hit for _, hit, _ in self.candidates), default=0.0)
        among = f"{self.considered}" if self.considered == self.available else f"{self.considered} of {self.available}"
        cached = f"holds {self.hit_tokens:.0f} of ~{self.tokens:.0f} prompt tokens"
        if best <= 0:
            return f"no replica holds the prefix; {self.policy} chose among {among}"
        if self.hit_tokens >= best:
            return f"{cached}, the most of {among}"
        scored = "scored worse" if self.scores else "was not chosen"
        return f"{cached}; another holds {best:.0f} but {scored} ({self.policy})"

    def document(self) -> dict[str, Any]:
        """The record as JSON, with the names of the API."""
        return {
            "requestId": self.request_id,
            "at": self.at,
            "model": self.model,
            "adapterState": self.adapter_state,
            "tenant": self.tenant,
            "policy": self.policy,
            "replica": self.replica,
            "why": self.why(),
            "promptTokens": {"estimated": round(self.tokens), "actual": self.prompt_tokens},
            "hitTokens": {"predicted": round(self.hit_tokens), "actual": self.cached_tokens},
            "chunks": {"prompt": self.chunks, "matched": self.matched_chunks},
            "stream": self.stream,
            "ttft": {"predicted": self.predicted_ttft, "actual": self.ttft},
            "latency": {"predicted": self.predicted_latency, "actual": self.latency},
            "candidates": [
                {"replica": name, "hitTokens": round(hit), "score": score} for name, hit, score in self.candidates
            ],
            "considered": self.considered,
            "available": self.available,
            "degraded": self.degraded,
            "prefixBreak": None
            if self.prefix_break is None
            else {"cause": self.prefix_break.cause, "lostTokens": self.prefix_break.lost_tokens},
            "shadow": self.shadow,
            "waitedSeconds": round(self.waited_seconds, 6),
            "decisionMicroseconds": round(self.decision_seconds * 1e6, 1),
            "failures": [{"replica": name, "reason": reason} for name, reason in self.failures],
            "outcome": self.outcome,
        }


def _shadow(choice: ShadowChoice | None) -> dict[str, Any] | None:
    """Not the choice itself: its ticket would keep the policy's state."""
    if choice is None:
        return None
    return {"policy": choice.policy.name, "replica": _name(choice.load), "hitTokens": round(choice.hit_tokens)}


def _best(fleet: Sequence[ReplicaState], scores: Sequence[float]) -> tuple[Sequence[ReplicaState], Sequence[float]]:
    """The candidates with the best scores, so that a record of a large fleet stays small."""
    if not scores:
        return fleet[:_MAX_CANDIDATES], ()
    best = heapq.nsmallest(_MAX_CANDIDATES, range(len(fleet)), key=scores.__getitem__)
    return [fleet[index] for index in best], [scores[index] for index in best]


def _name(state: object) -> str:
    return state.name if isinstance(state, Load) else ""


class Audit:
    """The last `size` records. `find` returns the latest record of a request id."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ring: deque[Record] = deque()
        self._by_id: dict[str, Record] = {}

    def add(
        self, decision: Decision, *, request_id: str, at: float, tenant: str, policy: str, degraded: bool
    ) -> Record:
        """Adds a record of a decision and returns it."""
        record = Record(decision, request_id=request_id, at=at, tenant=tenant, policy=policy, degraded=degraded)
        if len(self._ring) >= self._size:
            oldest = self._ring.popleft()
            if self._by_id.get(oldest.request_id) is oldest:
                del self._by_id[oldest.request_id]
        self._ring.append(record)
        self._by_id[request_id] = record
        return record

    def __len__(self) -> int:
        return len(self._ring)

    def find(self, request_id: str) -> Record | None:
        return self._by_id.get(request_id)

    def latest(self, count: int) -> Iterator[Record]:
        """The newest records, newest first."""
        for index in range(len(self._ring) - 1, max(-1, len(self._ring) - 1 - count), -1):
            yield self._ring[index]
