"""Our form of LBGR against a slow model: every score from the whole history, by the formulas in its module's docstring.

κ and θ are learned by the policy's own components, which have models of their own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import exp, inf
from typing import Any

import pytest
from support.slow_backlog import SlowBacklog, SlowShare

from plumage.routing import Lbgr, LbgrSettings, Query, ReplicaState
from plumage.routing.context_cost import ContextCost, Stretch
from plumage.routing.interface import Ticket
from plumage.routing.learned import Learned
from plumage.routing.regression import RecursiveLeastSquares

LEAST_MISS, GOOD_FAITH, SETTLED, TESTED, LESSONS, UNTAUGHT, REPORTED = 0.016, 4.0, 20.0, 20, 50.0, 20.0, 4
Weights = tuple[float, ...]


@dataclass
class Sent:
    """A running request: its predictions, and the work that its replica still has to do for it."""

    replica: SlowReplica
    x: tuple[float, float, float, float]
    service: float
    owed: float
    at: float
    hit: float
    share: SlowShare
    owing: bool = True
    doubted: float = 0.0


@dataclass
class SlowReplica:
    backlog: SlowBacklog
    ttft: RecursiveLeastSquares
    latency: RecursiveLeastSquares
    stretch: Stretch = field(default_factory=Stretch)
    heard: float = 0.0
    answers: int = 0
    adopted: int = 0
    lessons: float = UNTAUGHT
    grades: list[tuple[float, float, float]] = field(default_factory=list)  # predicted, kept, weight
    trust: float = 1.0  # at the last report of this replica

    def look(self) -> None:
        predicted = sum(predicted * weight for predicted, _, weight in self.grades)
        kept = sum(kept * weight for _, kept, weight in self.grades)
        self.trust = (kept + GOOD_FAITH) / (predicted + GOOD_FAITH)

    def grade(self, predicted: float, kept: float) -> None:
        self.grades = [(one, other, weight * 0.95) for one, other, weight in self.grades]
        self.grades.append((predicted, min(kept, predicted), 1.0))

    def fade(self) -> None:
        self.backlog.fade()
        self.grades = [(one, other, weight / 2.0) for one, other, weight in self.grades]


@dataclass
class Prompt:
    """slot: where it was sent last. continued: how often, repeats included."""

    chunks: Sequence[int]
    slot: int
    continued: int = 0


def cached_prefix(query: Query) -> int | None:
    return query.chunks[query.cached_chunks - 1] if query.cached_chunks else None


class SlowLbgr:
    def __init__(self, settings: LbgrSettings, slots: int) -> None:
        self.settings = settings
        self.context = ContextCost()
        self.arrivals: list[float] = []
        self.computed: list[tuple[float, float, float]] = []  # on any replica: seconds, thousand tokens, weight
        self.recent: list[tuple[int, float, float]] = []  # slot, thousand tokens, when
        self.prompts: list[Prompt] = []
        self.candidates = [ReplicaState(slot) for slot in range(slots)]
        self.turn = 0
        self.queued: list[tuple[Sequence[int], int, float]] = []  # prompts behind long queues, their slots, their turns
        self.last_turn = -inf
        self.prefixes: list[tuple[int | None, float]] = []  # of each request: the longest cached prefix, when
        self.held, self.found = 8.0, 4.0  # behind long queues, thousand tokens
        self.replicas: list[SlowReplica] = []
        for _ in range(slots):
            self.replicas.append(self.new_replica())

    # What is known

    @property
    def fleet_tokens(self) -> float:
        return sum(tokens * weight for _, tokens, weight in self.computed)

    @property
    def fleet_c_miss(self) -> float:
        tokens = self.fleet_tokens
        return sum(took * weight for took, _, weight in self.computed) / tokens if tokens else self.settings.c_miss

    def mean(self, kind: str) -> Weights:
        tested = [getattr(one, kind).weights for one in self.replicas if getattr(one, kind).updates >= TESTED]
        return tuple(sum(part) / len(tested) for part in zip(*tested, strict=True)) if tested else (0.0,) * 4

    def new_replica(self) -> SlowReplica:
        variance = self.settings.initial_variance
        ttft, latency = (
            RecursiveLeastSquares(
                forgetting=self.settings.forgetting,
                initial_variance=variance,
                trace_limit=40.0 * variance,
                weights=self.mean(kind),  # type: ignore[arg-type]
            )
            for kind in ("ttft", "latency")
        )
        return SlowReplica(SlowBacklog(self.fleet_c_miss), ttft, latency)

    def observed(self, now: float, window: float) -> float:
        """Seconds of the past that an average fading over `window` has seen."""
        since = max(now - min(self.arrivals, default=inf), 0.5)
        return window * (1.0 - exp(-since / window))

    # Deciding

    def wait(self, slot: int, now: float) -> float:
        done_at, behind = self.replicas[slot].backlog.bounds
        return max(done_at - now, behind)

    def at_its_turn(self, query: Query, slot: int) -> float:
        """Tokens that the slot holds at the request's turn. Behind a long queue: what a request there computes, by
        depths that grow by a fifth, or the surviving share of the present tokens.
        """
        held = query.hits.get(slot, 0.0)
        if query.now >= self.last_turn or self.wait(slot, query.now) <= self.settings.long_queue:
            return held
        shared = 0
        for chunks, where, turn in self.queued:
            if where == slot and turn > query.now:
                same = [one == other for one, other in zip(query.chunks, chunks, strict=False)]
                shared = max(shared, same.index(False) if False in same else len(same))
        grid = [1]
        while grid[-1] <= shared:
            grid.append(max(grid[-1] + 1, int(grid[-1] * 1.2)))
        depth = max([one for one in grid if one <= shared], default=0)
        return max(held * self.found / self.held, depth * query.tokens / max(len(query.chunks), 1))

    def parts(self, query: Query, replica: ReplicaState) -> tuple[float, float, float, float]:
        """Thousand tokens found and computed there, ŝ, W."""
        known = self.replicas[replica.slot]
        found = query.hits.get(replica.slot, 0.0) * known.trust / 1000.0
        miss = max(query.tokens / 1000.0 - found, LEAST_MISS)
        done_at, behind = known.backlog.bounds
        context = 1.0 + self.context.kappa * (found + miss / 2.0)
        service = self.settings.c_hit * found + known.backlog.c_miss * miss * context
        return found, miss, service, max(done_at - query.now, behind) + replica.foreign_work

    def score(self, query: Query, replica: ReplicaState, considered: Sequence[ReplicaState], candidates: int) -> float:
        settings, now = self.settings, query.now
        hits = self.at_its_turn(query, replica.slot)
        found, miss, service, work = self.parts(replace(query, hits={replica.slot: hits}), replica)
        own = service + work
        learned = self.replicas[replica.slot].ttft.predict((found, miss, work, 1.0))
        own_time = own + min(max(learned, -settings.most_correction * own), settings.most_correction * own)
        window = settings.arrival_seconds
        arriving = sum(exp(-(now - at) / window) for at in self.arrivals) / self.observed(now, window) / candidates
        arriving *= max(0.0, 1.0 - candidates * self.popularity(query))
        window = settings.spread_seconds
        here = self.computed_lately(replica.slot, now)
        here -= min(self.computed_lately(one.slot, now) for one in considered)
        crowding = settings.crowding * arriving * min(own, settings.foresight) * service
        filling = min(settings.spread * self.fleet_c_miss * here / self.observed(now, window), 3.0) * service
        held = max([query.hits.get(one.slot, 0.0) for one in self.candidates])
        known = self.continued(query)
        conversation = known is not None and known.continued < 8
        evicted = held < query.tokens / 2.0
        copying = min(settings.copying * service, 90.0) if conversation and not evicted else 0.0
        score = own_time + crowding + filling + copying
        if known is not None and conversation and evicted and known.slot == replica.slot:
            return score / (1.0 + settings.loyalty)
        return score

    def popularity(self, query: Query) -> float:
        """The share of the query's longest cached prefix in the requests of about half a minute."""
        recent = [(prefix, exp(-(query.now - at) / 30.0)) for prefix, at in self.prefixes]
        same = sum(weight for prefix, weight in recent if prefix is not None and prefix == cached_prefix(query))
        return same / max(sum(weight for _, weight in recent), 20.0)

    def computed_lately(self, slot: int, now: float) -> float:
        window = self.settings.spread_seconds
        return sum(tokens * exp(-(now - at) / window) for where, tokens, at in self.recent if where == slot)

    def continued(self, query: Query) -> Prompt | None:
        """The longest earlier prompt that this one continues. It ends at most 64 chunks before the end of the cached
        part, or of the prompt where less than half is cached.
        """
        chunks, held = query.chunks, max(query.hits.values(), default=0.0)
        known = len(chunks)
        if 0.0 < query.tokens / 2.0 <= held:
            known = min(int(held / query.tokens * known + 1.5), known)
        for index in reversed(range(max(known - 64, 0), known)):
            for prompt in self.prompts:
                if prompt.chunks[-1] == chunks[index]:
                    return prompt
        return None

    # Accounting

    def routed(self, query: Query, replica: ReplicaState) -> tuple[Sent, float, float | None]:
        """Also the predicted times to the first token and to the end."""
        slot, now = replica.slot, query.now
        known = self.replicas[slot]
        held = min(query.hits.get(slot, 0.0), query.tokens)
        hits = min(self.at_its_turn(query, slot), query.tokens)
        found, miss, service, work = self.parts(Query(now, query.tokens, {slot: hits}), replica)
        owed = service / max(known.backlog.c_miss, 1e-6)
        ttft_learned = known.ttft.predict((found, miss, work, 1.0))
        share = SlowShare(owed)
        known.backlog.add(share, now)
        self.recent.append((slot, owed, now))
        self.arrivals.append(now)
        self.prefixes.append((cached_prefix(query), now))
        if query.chunks:
            before = self.continued(query)
            if before is not None:
                before.continued += 1
            same = [one for one in self.prompts if one.chunks[-1] == query.chunks[-1]]
            self.prompts = [one for one in self.prompts if one not in same]
            self.prompts.append(Prompt(query.chunks, slot, same[0].continued if same else 0))
        if work > self.settings.long_queue:
            self.queued.append((query.chunks, slot, now + work))
            self.last_turn = max(self.last_turn, now + work)
        self.revisit(now)
        known.look()
        doubted = held / 1000.0 if held > hits else 0.0
        own = service + work
        ttft = max(own + ttft_learned, own / 10.0)
        more = known.latency.predict((found, miss, work, 1.0))
        latency = max(own + more, ttft) if known.latency.weights != (0.0, 0.0, 0.0, 0.0) else None
        return Sent(known, (found, miss, work, 1.0), service, owed, now, hits, share, True, doubted), ttft, latency

    def revisit(self, now: float) -> None:
        self.turn = (self.turn + 1) % len(self.replicas)
        one = self.replicas[self.turn]
        one.backlog.prior = self.fleet_c_miss
        if not one.backlog.waiting and now - one.heard > self.settings.stale_seconds:
            one.heard = now
            one.fade()
            pairs = zip(one.ttft.weights, self.mean("ttft"), strict=True)
            one.ttft.weights = tuple((mine + theirs) / 2.0 for mine, theirs in pairs)  # type: ignore[assignment]
        one.look()

    def first_token(self, sent: Sent, now: float) -> None:
        one = sent.replica
        if one not in self.replicas or not sent.owing:
            return
        sent.owing = False
        took = one.backlog.first_token(sent.share, now)
        self.computed = [(seconds, tokens, weight * 0.995) for seconds, tokens, weight in self.computed]
        self.computed.append((took, sent.owed, 1.0))
        if self.fleet_tokens > SETTLED:
            average = self.fleet_c_miss
            one.stretch.add(sent.x[0], sent.x[1], took * average / max(one.backlog.c_miss, 1e-6))
            self.context.learn(one.stretch, average)
            one.lessons = min(one.lessons + (now - one.heard) * LESSONS, UNTAUGHT)
            if one.lessons >= 1.0:
                one.lessons -= 1.0
                one.ttft.update(sent.x, now - sent.at - sent.service - sent.x[2])
        one.heard = now
        one.look()

    def finished(self, sent: Sent, now: float, cached: float | None) -> None:
        self.first_token(sent, now)
        one = sent.replica
        if one not in self.replicas:
            return
        one.answers += 1
        if (one.answers % REPORTED == 0 or one.latency.updates < TESTED) and self.fleet_tokens > SETTLED:
            one.latency.update(sent.x, now - sent.at - sent.service - sent.x[2])
        if cached is not None and sent.doubted:
            self.held = self.held * 0.98 + sent.doubted
            self.found = self.found * 0.98 + min(cached / 1000.0, sent.doubted)
        elif cached is not None and sent.hit > 0.0:
            one.grade(sent.hit / 1000.0, cached / 1000.0)

    def failed(self, sent: Sent, now: float) -> None:
        if sent.replica in self.replicas and sent.owing:
            sent.replica.backlog.give_up(sent.share, now)
            sent.replica.look()

    def forget(self, slot: int) -> None:
        self.replicas[slot] = self.new_replica()
        self.recent = [one for one in self.recent if one[0] != slot]
        self.prompts = [one for one in self.prompts if one.slot != slot]
        self.queued = [one for one in self.queued if one[1] != slot]

    def adopt(self, slot: int, learned: Learned, now: float) -> bool:
        one = self.replicas[slot]
        if one.ttft.updates or one.backlog.lessons or learned.updates < TESTED:
            return False
        self.computed.append((learned.c_miss * learned.experience, learned.experience, 1.0))
        one.backlog.start_from(learned.c_miss, learned.experience, self.fleet_c_miss)
        one.ttft.weights, one.latency.weights = learned.ttft, learned.latency
        one.adopted = one.ttft.updates = one.latency.updates = learned.updates
        one.heard = now
        one.look()
        return True


class Both:
    """The policy and its model, with the same outcomes. `on_their_way`: requests without an end yet."""

    def __init__(self, settings: LbgrSettings, slots: int, rng: random.Random) -> None:
        self.rng = rng
        self.speed = rng.choice([0.1, 0.0005])  # seconds for a thousand tokens
        self.policy = Lbgr(rng=random.Random(1), settings=settings)
        self.states = [ReplicaState(slot) for slot in range(slots)]
        self.policy.choose(Query(0.0, 1.0, {}), self.states)  # all slots at once, as the model has them
        self.model = SlowLbgr(settings, slots)
        self.on_their_way: list[tuple[Ticket, Sent]] = []

    def route(self, now: float) -> None:
        rng, slots = self.rng, range(len(self.states))
        tokens = rng.choice([0.0, 10.0, 800.0, 4_000.0, 30_000.0])
        held = rng.sample(slots, rng.randint(0, (len(slots) + 1) // 2))
        conversation = 1000 * rng.randrange(12)
        chunks = [conversation + depth for depth in range(rng.choice([0, 1, 3, 4, 80, 200]))]
        hits = {slot: tokens * rng.choice([0.0, 0.3, rng.choice([0.4, 0.5, 0.55, 1.1])]) for slot in held}
        deepest = rng.choice([0, 1, len(chunks) // 2, len(chunks)])
        query = Query(now, tokens, hits, chunks, cached_chunks=min(deepest, len(chunks)))
        for state in self.states:
            state.foreign_work = rng.choice([0.0, 0.0, 0.4])
        choice = self.policy.choose(query, self.states)
        considered: Sequence[ReplicaState] = choice.considered or self.states
        expected = [self.model.score(query, state, considered, len(self.states)) for state in considered]
        assert list(choice.scores) == pytest.approx(expected, rel=1e-7)
        assert choice.scores[[state.slot for state in considered].index(choice.slot)] == min(choice.scores)
        ticket = self.policy.routed(query, choice)
        sent, ttft, latency = self.model.routed(query, self.states[choice.slot])
        assert ticket.predicted_ttft == pytest.approx(ttft, rel=1e-7)
        assert ticket.predicted_latency == (None if latency is None else pytest.approx(latency, rel=1e-7))
        self.on_their_way.append((ticket, sent))

    def end(self, now: float) -> None:
        ticket, sent = self.on_their_way.pop(self.rng.randrange(len(self.on_their_way)))
        if self.rng.random() < 0.1:
            self.policy.failed(ticket, now)
            self.model.failed(sent, now)
            return
        cached = self.rng.choice([None, 0.0, sent.hit / 2.0, sent.hit, 2.0 * sent.hit])
        self.policy.finished(ticket, now, cached)
        self.model.finished(sent, now, cached)

    def first_token(self, now: float) -> float:
        """The first token of a prompt, after the time that it takes with its context. Returns that time."""
        ticket, sent = self.rng.choice(self.on_their_way)
        if sent.owing:
            hit, miss, _, _ = sent.x
            now += self.speed * miss * (1.0 + 0.2 * (hit + miss / 2.0)) * self.rng.uniform(0.8, 1.2)
        self.policy.first_token(ticket, now)
        self.model.first_token(sent, now)
        return now

    def replace(self, now: float) -> None:
        slot = self.rng.randrange(len(self.states))
        self.policy.forget(slot)
        self.model.forget(slot)
        if self.rng.random() < 0.7:
            weights: Any = tuple(self.rng.uniform(-0.1, 0.1) for _ in range(4))
            learned = Learned(self.rng.uniform(0.01, 2.0), self.rng.uniform(1.0, 30.0), weights, weights, 40)
            assert self.policy.adopt(slot, learned, now) == self.model.adopt(slot, learned, now)


@cache
def walk(seed: int, considered: int) -> tuple[Both, float]:
    """Eight hundred steps of both, compared at each. Also returns the highest κ on the way. A walk runs once."""
    rng, now, kappa = random.Random(f"{seed} {considered}"), 0.0, 0.0
    settings = LbgrSettings(
        c_hit=rng.choice([0.0, 0.02]),
        c_miss=rng.choice([0.1, 1.0]),
        crowding=rng.choice([0.0, 1.0, 2.0]),
        spread=rng.choice([0.0, 24.0]),
        copying=rng.choice([0.0, 20.0]),
        most_correction=rng.choice([0.1, 0.25]),
        considered=considered,
        loyalty=rng.choice([0.2, 1.0]),
        long_queue=rng.choice([0.0, 0.02, 2.0]),
        foresight=rng.choice([0.05, 20.0]),
    )
    both = Both(settings, (1, 3, 7)[seed % 3], rng)
    pace = 0.02 * both.speed * rng.choice([1.0, 50.0])
    for _ in range(800):
        now += rng.choice([0.0, pace, pace, 4.0 * pace]) if rng.random() < 0.99 else 45.0
        move = rng.random()
        if move < 0.4 or not both.on_their_way:
            both.route(now)
        elif move < 0.65:
            now = both.first_token(now)
        elif move < 0.995:
            both.end(now)
        else:
            both.replace(now)
        kappa = max(kappa, both.model.context.kappa)
    return both, kappa


@pytest.mark.parametrize("considered", [64, 4])
@pytest.mark.parametrize("seed", range(6))
def test_every_score_equals_the_formulas(seed: int, considered: int) -> None:
    walk(seed, considered)


def test_walks_reach_the_tested_rules() -> None:
    walks = [walk(seed, 64) for seed in range(6)]
    replicas = [one for both, _ in walks for one in both.model.replicas]
    assert any(kappa > 0.0 for _, kappa in walks)
    assert any(one.trust < 1.0 for one in replicas)
    assert any(one.ttft.updates - one.adopted > 2 * TESTED for one in replicas)
    assert any(one.latency.updates - one.adopted > TESTED for one in replicas)
    assert any(one.adopted for one in replicas)
    assert any(both.model.queued and both.model.held != 8.0 for both, _ in walks)
