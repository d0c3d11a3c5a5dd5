"""Several routers in front of one fleet, in virtual time.

Each router has its own policy, its own account of its requests, and its own mirror. What it knows of the others comes
by the product's own messages: `WorkExchange` makes and reads them, and `PolicySharing` shares what policies learned.
Their times are those of the product. Events of engines come as in `fleet`; engines report no load, which Lbgr does not
read.

While the directory is away (`Outage`) nothing of this arrives. When it is back, a router sees what the caches hold
then, as from a new snapshot. A router that joins starts as a new process: with nothing learned and an empty mirror.
Like the product it gets its first client once it has loaded the replicas' snapshots (0334).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any, Final, cast

from plumage import defaults
from plumage.blocks.events import BlockEvent, EventSink
from plumage.directory.sharing.work_exchange import PERIOD, WorkExchange
from plumage.directory.sharing.work_share import EXCHANGE_EVERY
from plumage.routing.interface import Query, ReplicaState, RoutingPolicy
from plumage_bench.virtual_time.directory_view import DirectoryView
from plumage_bench.virtual_time.fleet import Served
from plumage_bench.virtual_time.virtual_fleet import Hooks, VirtualFleet
from plumage_bench.workloads.arrivals import Arrival, Source
from plumage_engine.simulator.engine.request import SimRequest, StepReport
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine
from plumage_router.directory.link import DEGRADED_PENDING, INTERVAL
from plumage_router.directory.policy_sharing import PolicySharing

__all__ = ["ALWAYS", "Outage", "Routed", "Spread", "run_routers"]

DELIVERY: Final = 0.006  # seconds from a message until another router has read it: the server, half of a reader's pace
LOADING: Final = 1.0  # seconds from a new router's start until it has the replicas' snapshots
_SLICE: Final = 5.0  # virtual seconds between two checks of the end
_LEARNING: Final = 0.05  # weight of one prefill in `seconds_per_token`, as in the router's decider
_LEAST_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Outage:
    """The directory is away in [begin, end). back: seconds until routers have its new snapshots."""

    begin: float = inf
    end: float = inf
    back: float = 2.0

    def away(self, now: float) -> bool:
        return self.begin <= now < self.end

    def seen(self, now: float) -> float:
        """The time up to which routers know the engines' events at `now`."""
        return self.begin if self.begin <= now < self.end + self.back else now


ALWAYS: Final = Outage()


class Spread:
    """The router of each client, as behind a Service: drawn at random for each connection, and kept.

    joins: from then on the last router takes connections too, and every client connects again with its next request.
    """

    def __init__(self, routers: int, connections: int, seed: int, joins: float = 0.0) -> None:
        rng = random.Random(f"connections-{seed}")
        first = routers - 1 if joins else routers
        self._before = [rng.randrange(first) for _ in range(connections)]
        self._after = [rng.randrange(routers) for _ in range(connections)] if joins else self._before
        self._joins = joins

    def router_of(self, client: int, now: float) -> int:
        routers = self._after if now >= self._joins else self._before
        return routers[client % len(routers)]


@dataclass(frozen=True, slots=True)
class Routed:
    """A request and the number of its router."""

    served: Served
    router: int


def run_routers(
    engines: Sequence[EngineSettings],
    policies: Sequence[RoutingPolicy],
    source: Source,
    spread: Spread,
    *,
    seed: int,
    outage: Outage = ALWAYS,
    joins: float = 0.0,
) -> list[Routed]:
    """Serve everything that the source sends, through one router for each policy. The last one begins at `joins`."""
    fleet = _Fleet(engines, policies, source, spread, seed, outage, joins)
    for arrival in source.initial():
        fleet.plan(arrival)
    horizon = 0.0
    while fleet.done < len(source):
        horizon += _SLICE
        fleet.fleet.run(until=horizon)
    return fleet.requests


class _Offers:
    """The hash of learned state, as one router sees it (`SharedHash`)."""

    def __init__(self) -> None:
        self.mine: bytes | None = None
        self.others: dict[str, tuple[float, bytes]] = {}
        self.rounds = 0


class _Router:
    """Decides, keeps its account, and reads messages. It does both as `Decider` and `DirectoryLink` do."""

    def __init__(
        self, name: str, policy: RoutingPolicy, slots: int, block_size: int, outage: Outage, began: float
    ) -> None:
        self.name, self.policy, self.began = name, policy, began
        self.states = [ReplicaState(slot) for slot in range(slots)]
        self.view = DirectoryView(seen=lambda now: outage.seen(now) if now >= began + (began and LOADING) else -inf)
        self.exchange = WorkExchange(name, self, self._work, lambda: (policy,))
        self.exchange.set_replicas({str(slot): slot for slot in range(slots)})
        self.offers = _Offers()
        replicas: Any = [SimpleNamespace(id=str(slot), slot=slot) for slot in range(slots)]
        self._sharing = PolicySharing(policy, replicas, cast(Any, self.offers))
        self.written: tuple[float, bytes] | None = None  # what the hash has of us, and since when
        self.sent_at = -inf
        self.hurried = False
        self._seconds_per_token = 0.0
        self._block_size = block_size
        self._outage = outage

    def hold_pending(self, chain: Sequence[int], slot: int, now: float, ttl: float) -> None:
        self.view.hold_until(chain, slot, now + ttl)

    def _work(self) -> Mapping[int, float]:
        work = {state.slot: state.prefill_tokens * self._seconds_per_token for state in self.states}
        return {slot: seconds for slot, seconds in work.items() if seconds > 0.0}

    def check(self, now: float) -> None:
        """The tick of the directory's link."""
        self.exchange.drop_silent(now)
        foreign = self.exchange.foreign(now)
        for state in self.states:
            state.foreign_work = foreign.get(state.slot, 0.0)
        self._sharing.check(now)

    def route(self, arrival: Arrival, now: float) -> tuple[Served, float]:
        """The request, and the prompt tokens that its replica has to compute for this router, with its own."""
        blocks, tokens = arrival.prompt.blocks, float(arrival.prompt.tokens)
        held = self.view.match(blocks, now)
        hits = {slot: float(depth * self._block_size) for slot, depth in held.items()}
        query = Query(now, tokens, hits, blocks, cached_chunks=max(held.values(), default=0))
        choice = self.policy.choose(query, self.states)
        ticket = self.policy.routed(query, choice)
        pending = DEGRADED_PENDING if self._outage.away(now) else defaults.PENDING_OWNER_SECONDS
        ttl = pending + (ticket.predicted_ttft or 0.0)
        self.hold_pending(blocks, choice.slot, now, ttl)
        if 2 * held.get(choice.slot, 0) < len(blocks):
            self.exchange.sent(blocks, choice.slot, ttl)
        state, uncached = self.states[choice.slot], max(tokens - ticket.hit_tokens, 0.0)
        state.routed += 1
        state.prefill_tokens += uncached
        return Served(arrival, ticket, uncached), state.prefill_tokens

    def prefilled(self, served: Served, queued: float, now: float) -> None:
        if not served.prefilling:
            return
        served.prefilling = False
        self.states[served.ticket.slot].prefill_tokens -= served.uncached
        if queued >= _LEAST_TOKENS:
            seconds = (now - served.ticket.routed_at) / queued
            self._seconds_per_token += _LEARNING * (seconds - self._seconds_per_token)


class _Fleet(Hooks):
    """The engines, and the routers with their clocks and messages."""

    def __init__(
        self,
        engines: Sequence[EngineSettings],
        policies: Sequence[RoutingPolicy],
        source: Source,
        spread: Spread,
        seed: int,
        outage: Outage,
        joins: float,
    ) -> None:
        self.requests: list[Routed] = []
        self.done = 0
        self._source, self._spread, self._outage = source, spread, outage
        size, last = engines[0].block_size, len(policies) - 1
        started = joins - LOADING if joins else 0.0
        self._routers = [
            _Router(f"router-{index}", policy, len(engines), size, outage, started if index == last else 0.0)
            for index, policy in enumerate(policies)
        ]
        self._arrivals: list[Arrival] = []
        self._open: dict[int, tuple[Routed, float]] = {}
        made = {
            slot: SimEngine(settings, rng=random.Random(f"engine-{seed}-{slot}"), sink=self._sink(slot))
            for slot, settings in enumerate(engines)
        }
        self.fleet = VirtualFleet(made, self)
        if last:
            self._start_ticks(random.Random(f"ticks-{seed}"))

    def _sink(self, slot: int) -> EventSink:
        sinks = [router.view.sink(slot) for router in self._routers]

        def pass_on(event: BlockEvent) -> None:
            for sink in sinks:
                sink(event)

        return pass_on

    def _start_ticks(self, rng: random.Random) -> None:
        for router in self._routers:
            self._every(PERIOD, router, rng, self._hurry)
            self._every(INTERVAL, router, rng, lambda one: one.check(self.fleet.now))
            self._every(EXCHANGE_EVERY, router, rng, self._exchange)

    def _every(self, seconds: float, router: _Router, rng: random.Random, act: Callable[[_Router], None]) -> None:
        """A new process acts at its start; those that were there before have their own phase."""

        def again() -> None:
            act(router)
            self.fleet.call_at(self.fleet.now + seconds, again)

        self.fleet.call_at(router.began or rng.uniform(0.0, seconds), again)

    def _hurry(self, router: _Router) -> None:
        """Send now, or when the period since the last message is over (`SharedStream`)."""
        if not router.hurried:
            router.hurried = True
            self.fleet.call_at(max(self.fleet.now, router.sent_at + PERIOD), lambda: self._send(router))

    def _send(self, router: _Router) -> None:
        now = self.fleet.now
        router.hurried = False
        message = router.exchange.make(now)
        if message is None:
            return
        router.sent_at = now
        if not self._outage.away(now):
            self.fleet.call_at(now + DELIVERY, lambda: self._deliver(router, message))

    def _deliver(self, sender: _Router, message: bytes) -> None:
        for other in self._others(sender):
            other.exchange.take(message, self.fleet.now)

    def _exchange(self, router: _Router) -> None:
        """One exchange of learned state."""
        now = self.fleet.now
        if self._outage.away(now):
            return
        if router.offers.mine is not None:
            router.written = now, router.offers.mine
        router.offers.others = {
            other.name: (now - other.written[0], other.written[1])
            for other in self._others(router)
            if other.written is not None
        }
        router.offers.rounds += 1

    def _others(self, router: _Router) -> Iterator[_Router]:
        return (other for other in self._routers if other is not router and other.began <= self.fleet.now)

    def plan(self, arrival: Arrival) -> None:
        """Put an arrival into the event heap. The request's id is the arrival's number."""
        prompt, number = arrival.prompt, len(self._arrivals)
        self._arrivals.append(arrival)
        self.fleet.arrive(
            SimRequest(number, prompt.tokens, prompt.blocks, prompt.output_tokens, arrival.at, prompt.output_blocks)
        )

    def route(self, request: SimRequest, now: float) -> int:
        number = cast(int, request.request_id)
        arrival = self._arrivals[number]
        index = self._spread.router_of(arrival.client, now)
        router = self._routers[index]
        served, queued = router.route(arrival, now)
        routed = Routed(served, index)
        self._open[number] = routed, queued
        self.requests.append(routed)
        self._hurry(router)
        return served.ticket.slot

    def first_token(self, request: SimRequest, slot: int, now: float) -> None:
        routed, queued = self._open[cast(int, request.request_id)]
        served, router = routed.served, self._routers[routed.router]
        served.first_token = now
        router.prefilled(served, queued, now)
        router.policy.first_token(served.ticket, now)
        self._hurry(router)

    def finished(self, request: SimRequest, slot: int, now: float, cached_tokens: int) -> None:
        routed, queued = self._open.pop(cast(int, request.request_id))
        served, router = routed.served, self._routers[routed.router]
        served.finished, served.cached_tokens = now, cached_tokens
        self.done += 1
        router.prefilled(served, queued, now)
        router.policy.finished(served.ticket, now, float(cached_tokens))
        router.states[slot].routed -= 1
        follow_up = self._source.after(served.arrival.client, now)
        if follow_up is not None:
            self.plan(follow_up)

    def stepped(self, slot: int, now: float, report: StepReport) -> None:
        for router in self._routers:
            router.view.stepped(slot, now)
