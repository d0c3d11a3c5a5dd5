"""llm-d's default since v0.10: a warm replica until it is saturated, otherwise the fewest tokens in flight.

`prefix-cache-affinity-filter` keeps the replicas that cache the share `affinity` of the prompt's blocks. If the best of
them is expected to take `most_penalty` seconds longer than the best other replica, it keeps all. The expected time is
tokens in flight ÷ `peak_prefill` a second. `token-load-scorer` then takes the replica with the fewest tokens in flight,
including this request's uncached ones; equal ones are drawn at random. Tokens in flight are the uncached prompt tokens
of requests without a first token, for at most `expires` seconds after dispatch. Cached blocks come from an approximate
index of routed prompts (31,250 entries a replica, least recently used), or, with `precise`, from the engines' events.

Source: llm-d/llm-d-router v0.10, plugins prefix-cache-affinity-filter, token-load-scorer, inflight-load-producer and
approx-prefix-cache-producer, at their defaults (peak_prefill: measured by llm-d for Qwen3-32B on H100). The filter's
exploration probability is off by default and left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumage.errors import ConfigurationError
from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage_bench.baselines.routing.prefix_index import PrefixIndex

__all__ = ["LlmD"]


class _InFlight:
    """Uncached prompt tokens of one replica's requests without a first token, oldest dispatch first."""

    __slots__ = ("_entries", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0
        self._entries: dict[int, tuple[float, float]] = {}  # number: dispatched at, tokens

    def add(self, number: int, tokens: float, now: float) -> None:
        self._entries[number] = (now, tokens)
        self.tokens += tokens

    def release(self, number: int) -> None:
        """No-op for an entry that was released or has expired."""
        self.tokens -= self._entries.pop(number, (0.0, 0.0))[1]
        if not self._entries:
            self.tokens = 0.0

    def expire(self, before: float) -> None:
        while self._entries:
            number, (at, _) = next(iter(self._entries.items()))
            if at >= before:
                return
            self.release(number)


class LlmD(ScoringPolicy):
    """affinity: share of the prompt's blocks. most_penalty, expires: seconds. peak_prefill: tokens a second."""

    name = "LlmD"

    def __init__(
        self,
        *,
        rng: Randomness,
        affinity: float = 0.8,
        most_penalty: float = 18.0,
        peak_prefill: float = 15_928.0,
        expires: float = 300.0,
        precise: bool = False,
        index_entries: int = 31_250,
    ) -> None:
        super().__init__(rng=rng)
        for name, value in (("affinity", affinity), ("peak_prefill", peak_prefill), ("expires", expires)):
            if not value > 0.0:
                raise ConfigurationError(f"LlmD.{name} must be above 0, got {value}")
        self._affinity = affinity
        self._most_penalty = most_penalty
        self._peak_prefill = peak_prefill
        self._expires = expires
        self._precise = precise
        self._index = PrefixIndex(index_entries)
        self._in_flight: dict[int, _InFlight] = {}
        self._number = 0

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        """The filter runs first: replicas that it drops are not scored."""
        shares = self._shares(query, replicas)
        loads = [self._load(replica.slot, query.now) for replica in replicas]
        kept = self._kept(shares, loads)
        choice = super().choose(query, [replicas[index] for index in kept])
        if len(kept) == len(replicas):
            return choice
        return Choice(choice.slot, choice.scores, [replicas[index] for index in kept])

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        """Tokens in flight, including this request's."""
        shares = self._shares(query, replicas)
        return [
            self._load(replica.slot, query.now) + (1.0 - share) * query.tokens
            for replica, share in zip(replicas, shares, strict=True)
        ]

    def _kept(self, shares: Sequence[float], loads: Sequence[float]) -> Sequence[int]:
        """Positions of the replicas that the filter keeps: the warm ones, or all."""
        places = range(len(shares))
        warm = [place for place in places if shares[place] >= self._affinity]
        others = [loads[place] for place in places if shares[place] < self._affinity]
        if not warm or not others:
            return places
        penalty = (min(loads[place] for place in warm) - min(others)) / self._peak_prefill
        return places if self._most_penalty > 0.0 and penalty > self._most_penalty else warm

    def _shares(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        if self._precise:
            return [min(query.hits.get(replica.slot, 0.0) / max(query.tokens, 1.0), 1.0) for replica in replicas]
        matched = self._index.match(query.chunks)
        return [matched.get(replica.slot, 0) / max(len(query.chunks), 1) for replica in replicas]

    def _load(self, slot: int, now: float) -> float:
        held = self._in_flight.get(slot)
        if held is None:
            return 0.0
        held.expire(now - self._expires)
        return held.tokens

    def routed(self, query: Query, choice: Choice) -> Ticket:
        ticket = super().routed(query, choice)
        share = self._shares(query, [ReplicaState(choice.slot)])[0]
        self._number += 1
        held = self._in_flight.setdefault(choice.slot, _InFlight())
        held.add(self._number, (1.0 - share) * query.tokens, query.now)
        ticket.state = (held, self._number)
        if not self._precise:
            self._index.insert(choice.slot, query.chunks)
        return ticket

    def first_token(self, ticket: Ticket, now: float) -> None:
        state, ticket.state = ticket.state, None
        if state is not None:
            held, number = state
            held.release(number)

    def finished(self, ticket: Ticket, now: float, cached_tokens: float | None) -> None:
        self.first_token(ticket, now)

    def failed(self, ticket: Ticket, now: float) -> None:
        self.first_token(ticket, now)

    def forget(self, slot: int) -> None:
        self._index.forget(slot)
        self._in_flight.pop(slot, None)
