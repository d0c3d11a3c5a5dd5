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
from heapq import heapify, heappop, heappush

from plumage.directory.mirror import Mirror
from plumage.hashing.chunks import CHUNK
from plumage.routing.interface import Query, ReplicaState, RoutingPolicy, Ticket
from plumage_router.prompt import Prompt
from plumage_router.token_rate import TokenRate
from plumage_router.usage import Usage

__all__ = ["Decider", "Decision", "Waiting"]

_NOTHING = (0, 0)
_ROOM = 1024  # answers in one piece that are remembered before the ended ones are left out
KV_BLOCK = 16  # tokens; engines differ, and it only weighs replicas against one another


@dataclass(slots=True)
class Waiting:
    """Prompt tokens that a replica has to compute for one request. `queued`: those it had to compute when this was
    routed, these included; `counted`: they stand in its load still."""

    load: ReplicaState
    tokens: float
    queued: float
    since: float
    counted: bool = True

    def over(self) -> None:
        if self.counted:
            self.counted = False
            self.load.prefill_tokens -= self.tokens


@dataclass(slots=True)
class Decision:
    """One choice and what it was made from. `considered`: the replicas that were scored, of so many `candidates`;
    `hits`: tokens of the prompt each slot holds; `depth`: chunks of the longest match; `tokens`: of the whole prompt,
    as far as can be told; `waiting`: those the replica has to compute; `attempt`: 1, or more on a retry; `policy`: who
    chose, and hears how it ends, though another one may choose by then."""

    policy: RoutingPolicy
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
    waiting: Waiting


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
        self._unseen: list[tuple[float, int, Waiting]] = []  # answers in one piece, by when their prefill should end
        self._room = _ROOM
        self._decided = 0

    def decide(self, prompt: Prompt, candidates: Sequence[ReplicaState], now: float, attempt: int = 1) -> Decision:
        """One of `candidates`, which must not be empty."""
        policy, chunks = self.policy, prompt.chunks
        self._expire(now)
        found = self.mirror.match(chunks)
        hits, depth, tokens = self.measure(prompt, found)
        query = Query(now, tokens, hits, chunks, prompt.text, prompt.stream)
        choice = policy.choose(query, candidates)
        slot = choice.slot
        ticket = policy.routed(query, choice)
        self._expect(prompt, ticket, found.get(slot, _NOTHING)[0], now)
        load = self._load_of(slot)
        miss = max(0.0, tokens - ticket.hit_tokens)
        load.routed += 1
        load.prefill_tokens += miss
        load.decode_blocks += tokens / KV_BLOCK
        waiting = Waiting(load, miss, load.prefill_tokens, now)
        if not prompt.stream and ticket.predicted_ttft is not None:
            self._await(waiting, now + ticket.predicted_ttft)
        return Decision(
            policy, prompt, ticket, load, choice.considered or candidates, len(candidates), choice.scores, hits, depth,
            tokens, attempt, waiting,
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
        rest = max(0, prompt.size - depth * CHUNK)
        return hits, depth, known + rest / self.rate.of(prompt.text)

    def _expect(self, prompt: Prompt, ticket: Ticket, known: int, now: float) -> None:
        """Notes the pending owner; other routers are told of a prefix that is new there. An event can confirm it only
        when its turn has come, so what is predicted for that is added."""
        if chunks := prompt.chunks:
            ttl = self.pending + (ticket.predicted_ttft or 0.0)
            self.mirror.guess_tokens(CHUNK / self.rate.of(prompt.text))
            self.mirror.hold_pending(chunks, ticket.slot, now, ttl)
            if self.share is not None and 2 * known < len(chunks):
                self.share(chunks, ticket.slot, ttl)

    def first_token(self, decision: Decision, now: float) -> None:
        """Of a stream. The first byte of an answer in one piece is its last: that comes to `finished` only."""
        self._prefilled(decision.waiting, now)
        decision.policy.first_token(decision.ticket, now)

    def work(self, load: ReplicaState) -> float:
        """Seconds of this router's prefill work that wait on a replica, for the other routers to count in."""
        return max(0.0, load.prefill_tokens) * self.seconds_per_token

    def _await(self, waiting: Waiting, due: float) -> None:
        """Answers that are there before their prediction are left out now and then: no more than twice those under way
        are kept."""
        if len(self._unseen) >= self._room:
            self._unseen = [entry for entry in self._unseen if entry[2].counted]
            heapify(self._unseen)
            self._room = max(_ROOM, 2 * len(self._unseen))
        self._decided += 1
        heappush(self._unseen, (due, self._decided, waiting))

    def _expire(self, now: float) -> None:
        """Nobody sees when an answer in one piece is past its prefill: the prediction has to do."""
        unseen = self._unseen
        while unseen and unseen[0][0] <= now:
            due, _, waiting = heappop(unseen)
            if waiting.counted:
                self._prefilled(waiting, due)

    def _prefilled(self, waiting: Waiting, now: float) -> None:
        waiting.over()
        if waiting.queued >= KV_BLOCK:
            seconds = (now - waiting.since) / waiting.queued
            self.seconds_per_token += 0.05 * (seconds - self.seconds_per_token)

    def finished(self, decision: Decision, now: float, usage: Usage) -> None:
        """The answer is whole. What the engine counted of a plain prompt teaches the policy and the token rate."""
        self._over(decision)
        plain = decision.prompt.plain
        decision.policy.finished(decision.ticket, now, usage.cached_tokens if plain else None)
        if plain and usage.prompt_tokens:
            self._count(decision, usage.prompt_tokens)

    def _count(self, decision: Decision, tokens: int) -> None:
        """An engine counted the prompt's tokens. Its events will tell those of each chunk; until then the mirror has to
        guess, and the next turn of a conversation may come before them."""
        prompt = decision.prompt
        self.rate.learn(prompt.text, tokens, prompt.size)
        rest = (prompt.size - CHUNK * len(prompt.chunks)) / self.rate.of(prompt.text)
        self.mirror.count_pending(prompt.chunks, decision.ticket.slot, max(1.0, tokens - rest))

    def failed(self, decision: Decision, now: float, *, computed: bool = False) -> None:
        """No whole answer came. Unless the prompt was `computed`, the replica is not expected to hold it either."""
        self._over(decision)
        decision.policy.failed(decision.ticket, now)
        if not computed:
            self.mirror.drop_pending(decision.prompt.chunks, decision.ticket.slot)

    def _over(self, decision: Decision) -> None:
        decision.waiting.over()
        load = decision.load
        load.routed -= 1
        load.decode_blocks -= decision.tokens / KV_BLOCK
