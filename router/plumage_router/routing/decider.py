"""Chooses the replica of a request, in microseconds and without a round trip.

parse → check → render → hash (`request/prompt.py`) → look up → choose (here). The directory's mirror knows the tokens
of chunks that it has; the rest is estimated from the learned bytes per token.

The chosen replica becomes a pending owner of the prompt's chain at once. So a burst on a new prefix follows its first
request instead of scattering during its prefill. Every decision ends in `finished` or `failed`, once. The
policy learns from both, and both update the work in flight of the replica.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from plumage.directory.mirror.mirror import Mirror
from plumage.hashing.chunks import ENDS, PIECE
from plumage.queueing.start_window import REQUEST
from plumage.routing.adapters import AdapterSlots, AdapterState
from plumage.routing.interface import Query, ReplicaState, RoutingPolicy, Ticket
from plumage_router.request.prompt import SAMPLE, Prompt
from plumage_router.request.usage import Usage
from plumage_router.routing.shadow import Shadow, ShadowChoice

__all__ = ["Decider", "Decision", "PrefillWork", "TokenRate"]

_NO_MATCH = (0, 0)
_MAX_WATCHED = 1024  # watched prefills before the ended ones are removed
KV_BLOCK = 16  # tokens; only compares replicas with each other, so the engines' real size does not matter
_KEPT: Final = 31  # prompts of a class of `TokenRate`; odd, so that the median is one of them
_ASCII: Final = bytes(range(128))
_CLASS_BOUNDS: Final = (1 / 16, 1 / 2)  # share of bytes that are not ASCII


class TokenRate:
    """Estimates the bytes per token of this model's prompts. Nothing is tokenized: engines report token counts.

    The rate depends on the script: a text of emoji has a token for one or two bytes, a text of words one for four to
    six. Similar requests come in rows, so one median over all prompts would be wrong by a factor of three after a
    change. So prompts are classified by their share of bytes that are not ASCII, and each class has its own median.

    bytes_per_token: a guess, until the first answer.
    """

    __slots__ = ("_all", "_by_class", "_guess", "_rates")

    def __init__(self, bytes_per_token: float = 4.0) -> None:
        self._guess = bytes_per_token
        self._all: deque[float] = deque(maxlen=_KEPT)
        self._by_class = tuple(deque[float](maxlen=_KEPT) for _ in range(len(_CLASS_BOUNDS) + 1))
        self._rates: list[float | None] = [None] * len(self._by_class)

    @property
    def bytes_per_token(self) -> float:
        """Over all prompts; used for a class without a count."""
        return _median(self._all) if self._all else self._guess

    def of(self, text: bytes) -> float:
        """Bytes per token of prompts that end like this text."""
        return self._of_class(_class(text))

    def of_prompt(self, prompt: Prompt) -> float:
        """The same of a whole prompt, which keeps its class."""
        return self._of_class(_class_of(prompt))

    def learn(self, text: bytes, tokens: int) -> None:
        """Learns from `tokens`, the engine's count. Prompts shorter than a piece are ignored: they are mostly
        template."""
        self._learn(_class(text), tokens, len(text))

    def learn_prompt(self, prompt: Prompt, tokens: int) -> None:
        """The same of a whole prompt, also if only the end of its text is left."""
        self._learn(_class_of(prompt), tokens, prompt.size)

    def _of_class(self, kind: int) -> float:
        return self._rates[kind] or self.bytes_per_token

    def _learn(self, kind: int, tokens: int, size: int) -> None:
        if tokens > 0 and size >= PIECE:
            rate = size / tokens
            self._all.append(rate)
            self._by_class[kind].append(rate)
            self._rates[kind] = _median(self._by_class[kind])


def _median(seen: deque[float]) -> float:
    """The median ignores the few prompts that differ much."""
    return sorted(seen)[len(seen) // 2]


def _class_of(prompt: Prompt) -> int:
    if prompt.script < 0:
        prompt.script = _class(prompt.text)
    return prompt.script


def _class(text: bytes) -> int:
    """The class of a text by its share of bytes that are not ASCII."""
    end = text[-SAMPLE:]
    if end.isascii():
        return 0
    share = len(end.translate(None, _ASCII)) / len(end)
    return sum(share >= bound for bound in _CLASS_BOUNDS)


# As in `routing/interface.py`, `__init__` is written out, so that it is compiled.
@dataclass(slots=True, init=False)
class PrefillWork:
    """Prompt tokens that a replica has to compute for one request.

    `queued`: all prompt tokens that it had to compute when this request was routed, including these.
    `since`: when it was routed. `counted`: the tokens are still part of the replica's load.
    `visible`: its end can be seen or predicted, so the request counts as starting until then.
    """

    load: ReplicaState
    tokens: float
    queued: float
    since: float
    visible: bool
    counted: bool

    def __init__(self, load: ReplicaState, tokens: float, queued: float, since: float, visible: bool) -> None:
        self.load, self.tokens, self.queued, self.since, self.visible = load, tokens, queued, since, visible
        self.counted = True

    def end(self) -> None:
        if self.counted:
            self.counted = False
            self.load.prefill_tokens -= self.tokens
            if self.visible:
                self.load.starting -= 1
                self.load.starting_work -= self.work

    @property
    def work(self) -> float:
        """What the replica has to do until the first token, for `queueing.StartWindow`."""
        return self.tokens + REQUEST


@dataclass(slots=True, init=False)
class Decision:
    """One decision and its inputs.

    `policy`: it made the decision and gets the outcome, even if another policy is in use by then.
    `considered`: the replicas that were scored, of `candidates` available ones.
    `hits`: prompt tokens in the cache of each slot. `depth`: chunks of the longest match.
    `tokens`: estimate for the whole prompt. `prefill`: the tokens that the replica has to compute.
    `attempt`: 1, or more for a retry. `shadow`: what a second policy would have done; None without one.
    `adapter_state`: what the prompt's adapter found at the replica; None for the base model.
    """

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
    prefill: PrefillWork
    shadow: ShadowChoice | None
    adapter_state: AdapterState | None

    def __init__(
        self,
        policy: RoutingPolicy,
        prompt: Prompt,
        ticket: Ticket,
        load: ReplicaState,
        considered: Sequence[ReplicaState],
        candidates: int,
        scores: Sequence[float],
        hits: Mapping[int, float],
        depth: int,
        tokens: float,
        attempt: int,
        prefill: PrefillWork,
        shadow: ShadowChoice | None,
        adapter_state: AdapterState | None,
    ) -> None:
        self.policy, self.prompt, self.ticket, self.load = policy, prompt, ticket, load
        self.considered, self.candidates, self.scores = considered, candidates, scores
        self.hits, self.depth, self.tokens = hits, depth, tokens
        self.attempt, self.prefill, self.shadow, self.adapter_state = attempt, prefill, shadow, adapter_state


class Decider:
    """Chooses among candidates, and keeps account of each request until its end.

    load_of: the load of a slot, the same object as among the candidates.
    `pending_seconds`: time until a pending owner expires without an event that confirms it.
    `shadow`: a second policy that decides beside `policy`. `adapters`: narrows the candidates of both.
    `most_tokens`: that a prompt can have, the model's context. `share`: reports new chains to other routers.
    `changed`: is called after each decision and after each first token, since the work in flight is another one.
    `seconds_per_token`: from routing to first token, for each prompt token that waits at the replica. `started`: called
    with the prefill of a request whose first token came or was due, and with the time of that.
    """

    def __init__(
        self,
        mirror: Mirror,
        policy: RoutingPolicy,
        load_of: Callable[[int], ReplicaState],
        *,
        pending_seconds: float = 10.0,
    ) -> None:
        self.mirror = mirror
        self.policy = policy
        self.rate = TokenRate()
        self.pending_seconds = pending_seconds
        self.share: Callable[[Sequence[int], int, float], None] | None = None
        self.changed: Callable[[], None] | None = None
        self.started: Callable[[PrefillWork, float], None] | None = None
        self.seconds_per_token = 0.0
        self.most_tokens = math.inf
        self.shadow: Shadow | None = None
        self.adapters = AdapterSlots(1, 0)
        self._load_of = load_of
        # The prefills of requests that do not stream, by their predicted end.
        self._watched: list[tuple[float, int, PrefillWork]] = []
        self._max_watched = _MAX_WATCHED
        self._decided = 0

    @property
    def policies(self) -> tuple[RoutingPolicy, ...]:
        """The policy in use, then the one that decides beside it."""
        return (self.policy,) if self.shadow is None else (self.policy, self.shadow.policy)

    def decide(self, prompt: Prompt, candidates: Sequence[ReplicaState], now: float, attempt: int = 1) -> Decision:
        """Chooses one of `candidates`, which must not be empty."""
        policy, chunks = self.policy, prompt.chunks
        self.end_prefills(now)
        found = self.mirror.match(chunks)
        rate = self.rate.of_prompt(prompt)
        hits, depth, tokens = self._measure(prompt, found, rate)
        query = Query(now, tokens, hits, chunks, prompt.text, prompt.stream, ENDS, depth)
        available, adapter_state = len(candidates), None
        if prompt.adapter:
            candidates = self.adapters.narrow(prompt.adapter, candidates)
        choice = policy.choose(query, candidates)
        slot = choice.slot
        ticket = policy.routed(query, choice)
        shadow = None
        if self.shadow is not None and attempt == 1:
            shadow = self.shadow.decide(query, candidates, slot)
        self._add_pending_owner(prompt, ticket, found.get(slot, _NO_MATCH)[0], now, rate)
        if prompt.adapter:
            adapter_state = self.adapters.routed(prompt.adapter, slot)
        load = self._load_of(slot)
        miss = max(0.0, min(tokens, self.most_tokens * prompt.prompts) - ticket.hit_tokens)
        load.routed += 1
        load.prefill_tokens += miss
        load.decode_blocks += tokens / KV_BLOCK
        visible = prompt.uses_device and (prompt.stream or ticket.predicted_ttft is not None)
        prefill = PrefillWork(load, miss, load.prefill_tokens, now, visible)
        if visible:
            load.starting += 1
            load.starting_work += prefill.work
        if not prompt.stream and ticket.predicted_ttft is not None:
            self._watch_prefill(prefill, now + ticket.predicted_ttft)
        if self.changed is not None:
            self.changed()
        return Decision(
            policy, prompt, ticket, load, choice.considered or candidates, available, choice.scores, hits, depth,
            tokens, attempt, prefill, shadow, adapter_state,
        )  # fmt: skip

    def expected_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt, at most the model's context for each of a body's prompts. Call it while the text is
        there."""
        if not prompt.uses_device:
            return 0
        if prompt.audio_tokens:
            return prompt.audio_tokens
        if prompt.text and prompt.prompts == 1:
            tokens = math.ceil(len(prompt.text) / self.rate.of_prompt(prompt))
        else:
            tokens = math.ceil(len(prompt.payload) / self.rate.of(prompt.payload))
        return int(min(self.most_tokens * prompt.prompts, tokens))

    def look_up(self, prompt: Prompt) -> tuple[dict[int, float], int, float]:
        """The first step of `decide`; for benchmarks."""
        return self._measure(prompt, self.mirror.match(prompt.chunks), self.rate.of_prompt(prompt))

    def _measure(
        self, prompt: Prompt, found: Mapping[int, tuple[int, int]], rate: float
    ) -> tuple[dict[int, float], int, float]:
        """From a match in the mirror: cached tokens by slot, chunks of the longest match, tokens of the whole
        prompt."""
        depth = known = 0
        hits: dict[int, float] = {}
        for slot, (chunks, tokens) in found.items():
            hits[slot] = tokens
            if chunks > depth:
                depth, known = chunks, tokens
        rest = max(0, prompt.size - ENDS[depth])
        return hits, depth, known + rest / rate

    def _add_pending_owner(self, prompt: Prompt, ticket: Ticket, known: int, now: float, rate: float) -> None:
        """Adds the pending owner, and shares a new prefix with other routers.

        An event can confirm it only after the prefill, so the predicted time for that is added to the expiry.
        """
        if chunks := prompt.chunks:
            ttl = self.pending_seconds + (ticket.predicted_ttft or 0.0)
            self.mirror.guess_tokens(PIECE / rate)
            self.mirror.hold_pending(chunks, ticket.slot, now, ttl)
            if self.share is not None and 2 * known < len(chunks):
                self.share(chunks, ticket.slot, ttl)

    def first_token(self, decision: Decision, now: float, *, learns: bool = True) -> None:
        """The first token of a stream came. Other answers only call `finished`. learns: its time says something about
        the replica's speed."""
        self._prefill_ended(decision.prefill, now)
        if learns:
            decision.policy.first_token(decision.ticket, now)
            if decision.shadow is not None:
                decision.shadow.first_token(now)
        if self.changed is not None:
            self.changed()

    def answered(self, decision: Decision, now: float) -> None:
        """The replica answered, so it has started the request, perhaps sooner than predicted."""
        prefill = decision.prefill
        if self.started is not None and prefill.visible and prefill.counted:
            self.started(prefill, now)

    def work(self, load: ReplicaState) -> float:
        """Seconds of this router's prefill work on a replica, for the other routers."""
        return max(0.0, load.prefill_tokens) * self.seconds_per_token

    def _watch_prefill(self, prefill: PrefillWork, due: float) -> None:
        """Watches a prefill until its predicted end. Ended ones are removed, so the list stays below twice the number
        of requests in flight."""
        if len(self._watched) >= self._max_watched:
            self._watched = [entry for entry in self._watched if entry[2].counted]
            heapify(self._watched)
            self._max_watched = max(_MAX_WATCHED, 2 * len(self._watched))
        self._decided += 1
        heappush(self._watched, (due, self._decided, prefill))

    def end_prefills(self, now: float) -> None:
        """Ends prefills by their predicted time, because an answer that does not stream has no first token."""
        watched = self._watched
        while watched and watched[0][0] <= now:
            due, _, prefill = heappop(watched)
            if prefill.counted:
                self._prefill_ended(prefill, due)

    def _prefill_ended(self, prefill: PrefillWork, now: float) -> None:
        prefill.end()
        if self.started is not None and prefill.visible:
            self.started(prefill, now)
        if prefill.queued >= KV_BLOCK:
            seconds = (now - prefill.since) / prefill.queued
            self.seconds_per_token += 0.05 * (seconds - self.seconds_per_token)

    def finished(self, decision: Decision, now: float, usage: Usage) -> None:
        """The answer is complete. Policy and token rate learn from the engine's counts of a plain prompt."""
        self._end(decision)
        plain = decision.prompt.plain
        cached = usage.cached_tokens if plain else None
        decision.policy.finished(decision.ticket, now, cached)
        if decision.shadow is not None:
            decision.shadow.finished(now, cached)
        if plain and usage.prompt_tokens:
            self._learn_tokens(decision, usage.prompt_tokens)

    def _learn_tokens(self, decision: Decision, tokens: int) -> None:
        """Learns from the engine's count of the prompt's tokens. Its events will report the tokens of each chunk. The
        next turn of a conversation may come before them, so the mirror gets an estimate."""
        prompt = decision.prompt
        self.rate.learn_prompt(prompt, tokens)
        rest = (prompt.size - ENDS[len(prompt.chunks)]) / self.rate.of_prompt(prompt)
        self.mirror.count_pending(prompt.chunks, decision.ticket.slot, max(1.0, tokens - rest))

    def failed(self, decision: Decision, now: float, *, computed: bool = False) -> None:
        """No complete answer came. Unless the prompt was `computed`, the replica does not have it in its cache."""
        self._end(decision)
        decision.policy.failed(decision.ticket, now)
        if decision.shadow is not None:
            decision.shadow.failed(now)
        if not computed:
            self.mirror.drop_pending(decision.prompt.chunks, decision.ticket.slot)

    def _end(self, decision: Decision) -> None:
        decision.prefill.end()
        if decision.prompt.adapter:
            self.adapters.ended(decision.prompt.adapter, decision.ticket.slot)
        load = decision.load
        load.routed -= 1
        load.decode_blocks -= decision.tokens / KV_BLOCK
