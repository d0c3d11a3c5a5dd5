"""The decision: from a request's bytes to the replica that gets it, in microseconds and without a round trip.

parse → check → render → hash (`prompt.py`) → look up → choose (here). Prompt tokens are the directory's own count for
what it knows and bytes ÷ the model's learned bytes a token for the rest.

The chosen replica is noted as a pending owner of the prompt's chain at once, so that a burst on a new prefix follows
its first request instead of scattering during its prefill. Every decision ends in `finished` or `failed`, once; both
feed the policy and keep the account of what is under way where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plumage.directory.mirror import Mirror
from plumage.hashing.chunks import CHUNK
from plumage.routing.interface import Query, ReplicaState, RoutingPolicy, Ticket
from plumage_router.prompt import Prompt
from plumage_router.usage import Usage

__all__ = ["Decider", "Decision", "TokenRate"]

_NOTHING = (0, 0)
KV_BLOCK = 16  # tokens; engines differ, and it only weighs replicas against one another


class TokenRate:
    """Bytes a token of this model's prompts, learned from what engines counted."""

    __slots__ = ("bytes_per_token",)

    def __init__(self, bytes_per_token: float = 4.0) -> None:
        self.bytes_per_token = bytes_per_token

    def learn(self, size: int, tokens: int) -> None:
        """One prompt of `size` bytes had `tokens` tokens. Short prompts are mostly template and say little."""
        if tokens > 0 and size >= CHUNK:
            self.bytes_per_token += 0.02 * (size / tokens - self.bytes_per_token)


@dataclass(slots=True)
class Decision:
    """One choice and what it was made from. `considered`: the replicas that were scored, of so many `candidates`;
    `hits`: tokens of the prompt each slot holds; `depth`: chunks of the longest match; `tokens`: of the whole prompt,
    as far as can be told; `miss`: those the replica has to compute; `queued`: those it had to compute when this was
    routed, these included; `attempt`: 1, or more on a retry."""

    prompt: Prompt
    ticket: Ticket
    load: ReplicaState
    considered: Sequence[ReplicaState]
    candidates: int
    scores: Sequence[float]
    hits: Mapping[int, float]
    depth: int
    tokens: float
    attempt: int
    miss: float
    queued: float
    prefilling: bool = True


class Decider:
    """Chooses among candidates and follows each request to its end. `load_of`: a slot's load, the same object that
    stands among the candidates. `pending`: seconds until an unconfirmed owner lapses."""

    def __init__(
        self,
        mirror: Mirror,
        policy: RoutingPolicy,
        load_of: Callable[[int], ReplicaState],
        *,
        rate: TokenRate | None = None,
        pending: float = 10.0,
    ) -> None:
        self.mirror = mirror
        self.policy = policy
        self.rate = rate or TokenRate()
        self.pending = pending
        self.share: Callable[[Sequence[int], int, float], None] | None = None  # tells other routers of new chains
        self.seconds_per_token = 0.0  # from routing to first token, for each prompt token waiting there
        self._load_of = load_of

    def decide(self, prompt: Prompt, candidates: Sequence[ReplicaState], now: float, attempt: int = 1) -> Decision:
        """One of `candidates`, which must not be empty."""
        policy, chunks = self.policy, prompt.chunks
        found = self.mirror.match(chunks)
        hits, depth, tokens = self.measure(prompt, found)
        query = Query(now, tokens, hits, chunks, prompt.text)
        choice = policy.choose(query, candidates)
        slot = choice.slot
        ticket = policy.routed(query, choice)
        self._expect(chunks, ticket, found.get(slot, _NOTHING)[0], now)
        load = self._load_of(slot)
        miss = max(0.0, tokens - ticket.hit_tokens)
        load.routed += 1
        load.prefill_tokens += miss
        load.decode_blocks += tokens / KV_BLOCK
        return Decision(
            prompt, ticket, load, choice.considered or candidates, len(candidates), choice.scores, hits, depth, tokens,
            attempt, miss, load.prefill_tokens,
        )  # fmt: skip

    def look_up(self, prompt: Prompt) -> tuple[dict[int, float], int, float]:
        """What `decide` starts from; for who wants to know what it costs."""
        return self.measure(prompt, self.mirror.match(prompt.chunks))

    def measure(self, prompt: Prompt, found: Mapping[int, tuple[int, int]]) -> tuple[dict[int, float], int, float]:
        """From what the mirror found: tokens held by slot, chunks of the longest match, tokens of the whole prompt."""
        depth = known = 0
        hits: dict[int, float] = {}
        for slot, (chunks, tokens) in found.items():
            hits[slot] = tokens
            if chunks > depth:
                depth, known = chunks, tokens
        rest = max(0, len(prompt.text) - depth * CHUNK)
        return hits, depth, known + rest / self.rate.bytes_per_token

    def _expect(self, chunks: Sequence[int], ticket: Ticket, known: int, now: float) -> None:
        """Notes the pending owner; other routers are told of a prefix that is new there. An event can confirm it only
        when its turn has come, so what is predicted for that is added."""
        if chunks:
            ttl = self.pending + (ticket.predicted_ttft or 0.0)
            self.mirror.hold_pending(chunks, ticket.slot, now, ttl)
            if self.share is not None and 2 * known < len(chunks):
                self.share(chunks, ticket.slot, ttl)

    def first_token(self, decision: Decision, now: float) -> None:
        self._prefilled(decision)
        self.policy.first_token(decision.ticket, now)
        if decision.queued >= KV_BLOCK:
            seconds = (now - decision.ticket.routed_at) / decision.queued
            self.seconds_per_token += 0.05 * (seconds - self.seconds_per_token)

    def work(self, load: ReplicaState) -> float:
        """Seconds of this router's prefill work that wait on a replica, for the other routers to count in."""
        return max(0.0, load.prefill_tokens) * self.seconds_per_token

    def finished(self, decision: Decision, now: float, usage: Usage) -> None:
        """The answer is whole. What the engine counted of a plain prompt teaches the policy and the token rate."""
        self._over(decision)
        plain = decision.prompt.plain
        self.policy.finished(decision.ticket, now, usage.cached_tokens if plain else None)
        if plain and usage.prompt_tokens:
            self.rate.learn(len(decision.prompt.text), usage.prompt_tokens)

    def failed(self, decision: Decision, now: float, *, computed: bool = False) -> None:
        """No whole answer came. Unless the prompt was `computed`, the replica is not expected to hold it either."""
        self._over(decision)
        self.policy.failed(decision.ticket, now)
        if not computed:
            self.mirror.drop_pending(decision.prompt.chunks, decision.ticket.slot)

    def _prefilled(self, decision: Decision) -> None:
        if decision.prefilling:
            decision.prefilling = False
            decision.load.prefill_tokens -= decision.miss

    def _over(self, decision: Decision) -> None:
        self._prefilled(decision)
        load = decision.load
        load.routed -= 1
        load.decode_blocks -= decision.tokens / KV_BLOCK
