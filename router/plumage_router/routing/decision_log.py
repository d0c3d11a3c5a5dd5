"""What a pool's router keeps of its decisions: a record of each of the last, and counts over all of them.

- `Audit` records why a request went to its replica: a bounded ring, searchable by request id. A record keeps references
  to the inputs of the decision, which are small lists, and becomes text only on request. It contains no prompt.
- `HotPrefixes` counts the prefixes that this router matches most often, in bounded memory.
- `CacheCurve` is the miss-ratio curve of this router's traffic: how much cache it could use. The autoscaler reads it.
- `PrefixBreaks` (`prefix_breaks.py`) detects prompts whose early bytes changed since their previous turn.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plumage.fleet_report import CurvePoints, curve_points
from plumage.hashing.chunks import ENDS, PIECE
from plumage.mrc import ReuseSampler
from plumage.routing.adapters import AdapterState
from plumage.routing.interface import ReplicaState
from plumage_router.fleet.replicas import Load
from plumage_router.http.errors import Failure
from plumage_router.routing.decider import Decision
from plumage_router.routing.prefix_breaks import PrefixBreak, PrefixBreaks
from plumage_router.routing.shadow import ShadowChoice

__all__ = ["Audit", "CacheCurve", "DecisionLog", "HotPrefixes", "Record"]

_MAX_CANDIDATES = 16  # kept of a large fleet: those with the best scores
_SAMPLES: Final = 4096
_LARGEST: Final = 1 << 24  # pieces of 256 bytes: a billion tokens
_ENDS: Final = tuple(end // PIECE for end in ENDS)
_AGE_INTERVAL: Final = 60.0  # seconds
_FADE: Final = 0.9
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


class HotPrefixes:
    """Counts by the deepest chunk that a request matched.

    Recent counts are in one dict, so a count is one look-up. `take` moves them to the table and returns them to be
    shared with the pool. When the table is full, every count is halved and prefixes without a count are dropped. So a
    hot prefix stays, and old counts fade.

    capacity: entries of the table.
    max_recent: chunks between two calls of `take`; beyond it the recent counts move to the table without being shared.
    """

    def __init__(self, capacity: int = 1024, max_recent: int = 4096) -> None:
        self._capacity = capacity
        self._max_recent = max_recent
        self._recent: dict[int, list[int]] = {}  # chunk → [uses, tokens]
        self._table: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._table) + len(self._recent)

    def count(self, chunk: int, tokens: float) -> None:
        """Counts a request that matched up to `chunk`. tokens: in the chosen replica's cache."""
        known = self._recent.get(chunk)
        if known is None:
            self._recent[chunk] = [1, int(tokens)]
            if len(self._recent) > self._max_recent:
                self.take()
        else:
            known[0] += 1
            if tokens > known[1]:
                known[1] = int(tokens)

    def take(self) -> dict[int, tuple[int, int]]:
        """Returns chunk → (uses, tokens) since the last call."""
        recent, self._recent = self._recent, {}
        for chunk, (uses, tokens) in recent.items():
            known = self._table.setdefault(chunk, [0, 0])
            known[0] += uses
            known[1] = max(known[1], tokens)
        while len(self._table) > self._capacity:
            self._fade()
        return {chunk: (uses, tokens) for chunk, (uses, tokens) in recent.items()}

    def top(self, number: int) -> list[dict[str, Any]]:
        best = heapq.nlargest(min(number, self._capacity), self._counts().items(), key=lambda item: item[1][0])
        return [{"chunk": f"{chunk:016x}", "tokens": tokens, "count": uses} for chunk, (uses, tokens) in best]

    def _counts(self) -> dict[int, tuple[int, int]]:
        both = {chunk: (uses, tokens) for chunk, (uses, tokens) in self._table.items()}
        for chunk, (uses, tokens) in self._recent.items():
            known = both.get(chunk, (0, 0))
            both[chunk] = (known[0] + uses, max(known[1], tokens))
        return both

    def _fade(self) -> None:
        """Halves the counts until a quarter of the table is free."""
        while len(self._table) > self._capacity * 3 // 4:
            self._table = {chunk: [uses // 2, tokens] for chunk, (uses, tokens) in self._table.items() if uses > 1}


class CacheCurve:
    """Call `add` for each request and `age` with each tick.

    Each chunk chain is added once, whatever replica got it. A pool that routes by prefix is close to one cache
    of the size of all its replicas. A router sees only its own requests. An access costs 0.05 µs, a sampled one 2 µs
    (`plumage.mrc.sampler`). Old accesses fade with a half-life of seven minutes.
    """

    def __init__(self) -> None:
        self._sampler = ReuseSampler(_SAMPLES, _LARGEST, hashed=True)
        self._next: float | None = None

    def add(self, chunks: Sequence[int]) -> None:
        """Adds the chain of a prompt."""
        self._sampler.access_all(chunks, _ENDS)

    def age(self, now: float) -> None:
        """Fades old accesses, once a minute."""
        if self._next is None:
            self._next = now + _AGE_INTERVAL
        if now >= self._next:
            self._next = now + _AGE_INTERVAL
            self._sampler.age(_FADE)

    def points(self, bytes_per_token: float) -> CurvePoints:
        """The curve over tokens of cache. bytes_per_token: of this model's prompts."""
        return curve_points(self._sampler.curve(), PIECE / bytes_per_token)


class DecisionLog:
    """All that is kept of a pool's decisions. `add_first` each request once, and `add` each decision.

    size: records that are kept. rate: bytes per token of a prompt.
    """

    def __init__(self, size: int, rate: Callable[[bytes], float]) -> None:
        self.audit = Audit(size)
        self.hot_prefixes = HotPrefixes()
        self.cache_curve = CacheCurve()
        self.prefix_breaks = PrefixBreaks(rate)

    def add_first(self, decision: Decision, now: float) -> PrefixBreak | None:
        """Counts a request once, however often it is retried. Returns how it broke its conversation's prefix."""
        self.cache_curve.add(decision.prompt.chunks)
        return self.prefix_breaks.check(decision.prompt, decision.depth, now)

    def add(
        self, decision: Decision, *, request_id: str, at: float, tenant: str, policy: str, degraded: bool
    ) -> Record:
        """Records a decision, also that of a retry. at: Unix seconds."""
        if decision.depth:
            self.hot_prefixes.count(decision.prompt.chunks[decision.depth - 1], decision.ticket.hit_tokens)
        return self.audit.add(decision, request_id=request_id, at=at, tenant=tenant, policy=policy, degraded=degraded)

    def sweep(self, now: float) -> None:
        """Call with each tick: fades old accesses and forgets old prompts."""
        self.cache_curve.age(now)
        self.prefix_breaks.expire(now)
