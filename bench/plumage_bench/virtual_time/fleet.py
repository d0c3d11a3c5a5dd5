"""A fleet in virtual time: simulated engines, a routing policy of core, and the directory's lag between them.

A policy sees what a router would see: hits by the engines' events, `directory_lag` late, and pending owners before
that; the engines' load at the last poll; its own requests in flight, exactly. Policies with a tree of their own fill it
from the prompts that they routed, as in their products. There is no wall clock, so a seed repeats a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan
from typing import Protocol, cast

from plumage.kv_metrics import UsageSums
from plumage.routing.interface import Query, ReplicaState, RoutingPolicy, Ticket
from plumage_bench.virtual_time.directory_view import DirectoryView
from plumage_bench.virtual_time.virtual_fleet import Hooks, VirtualFleet
from plumage_bench.workloads.arrivals import Arrival, Source
from plumage_engine.simulator.engine.request import SimRequest, StepReport
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine

__all__ = ["FleetRouting", "FleetRun", "Observer", "Served", "Worker", "run_fleet"]

_SLICE = 5.0  # virtual seconds between two checks of late requests
_GOLDEN = 0.6180339887498949  # the fractional parts of its multiples are evenly distributed
_DECODE_BLOCK = 16  # tokens of a block for policies that count blocks of requests, for any block size of the engines


@dataclass(slots=True)
class Served:
    """One request from its arrival on. Times are seconds of virtual time, NaN until they happened. `prefilling`: by the
    policy's knowledge."""

    arrival: Arrival
    ticket: Ticket
    uncached: float  # prompt tokens to compute, as predicted when it was routed
    first_token: float = nan
    finished: float = nan
    cached_tokens: int = 0
    prefilling: bool = True

    @property
    def ttft(self) -> float:
        return self.first_token - self.arrival.at

    @property
    def latency(self) -> float:
        return self.finished - self.arrival.at


@dataclass(slots=True)
class Worker:
    """One engine and its measurements. kv_usage: over its busy seconds."""

    engine: SimEngine
    state: ReplicaState
    kv_usage: UsageSums = field(default_factory=UsageSums)

    @property
    def busy(self) -> float:
        """Seconds of its steps."""
        return self.kv_usage.seconds

    @property
    def muv(self) -> float:
        """Memory utilisation variance (the article): standard deviation over time of the KV usage while it worked."""
        return self.kv_usage.deviation


@dataclass(slots=True)
class FleetRun:
    """The results of a run. `complete` is False if it was stopped because too many requests were late."""

    served: Sequence[Served]
    workers: Sequence[Worker]
    seconds: float
    complete: bool


class AdapterRule(Protocol):
    """Which replicas a request for a LoRA adapter is offered, as `plumage.routing.adapters` has it."""

    def narrow(self, adapter: str, candidates: Sequence[ReplicaState]) -> Sequence[ReplicaState]: ...

    def routed(self, adapter: str, slot: int) -> object: ...

    def ended(self, adapter: str, slot: int) -> None: ...


class Observer(Protocol):
    """Is notified of each request and step of a fleet. `number`: of the request, which is its id in the engines too."""

    def routed(self, number: int, served: Served) -> None: ...

    def stepped(self, worker: Worker, report: StepReport, now: float) -> None:
        """A step of the engine has ended. Requests that ended with it are complete."""
        ...


def run_fleet(
    engines: Sequence[EngineSettings],
    policy: RoutingPolicy,
    source: Source,
    *,
    seed: int,
    directory_lag: float = 0.050,
    load_interval: float = 0.050,
    late_after: float = inf,
    late_share: float = 0.05,
    in_one_piece: float = 0.0,
    until: float = inf,
    observer: Observer | None = None,
    adapters: AdapterRule | None = None,
    make: Callable[..., FleetRouting] | None = None,
) -> FleetRun:
    """Serve everything that the source sends. A share `in_one_piece` of its requests does not stream, so the policy
    sees no first token of them. Stops early, with `complete=False`, when more than `late_share` of all waited longer
    than `late_after` for their first token: then the percentile is over its limit in any case. It also stops after
    `until` seconds, to `_SLICE` exactly. adapters: the requests are for LoRA adapters, one for each of their groups.
    make: makes the router's part, for one that does more than `FleetRouting`."""
    routing = (make or FleetRouting)(
        engines, policy, source, seed, directory_lag, load_interval, late_after, in_one_piece, observer, adapters
    )
    for arrival in source.initial():
        routing.plan(arrival)
    allowed = late_share * len(source)
    horizon = 0.0
    while routing.done < len(source):
        horizon += _SLICE
        routing.fleet.run(until=horizon)
        if routing.late(horizon) > allowed or horizon >= until:
            return FleetRun(routing.served, routing.workers, routing.fleet.now, complete=False)
    return FleetRun(routing.served, routing.workers, routing.fleet.now, complete=True)


class FleetRouting(Hooks):
    """The router's part: routes arrivals, is informed about tokens, and keeps its view of caches and loads."""

    def __init__(
        self,
        engines: Sequence[EngineSettings],
        policy: RoutingPolicy,
        source: Source,
        seed: int,
        directory_lag: float,
        load_interval: float,
        late_after: float,
        in_one_piece: float,
        observer: Observer | None,
        adapters: AdapterRule | None,
    ) -> None:
        self._adapters = adapters
        self.served: list[Served] = []
        self.done = 0
        self._policy = policy
        self._source = source
        self.view = DirectoryView(lag=directory_lag)
        self.block_size = engines[0].block_size
        self._load_interval = load_interval
        self._loads_at = -inf
        self._late_after = late_after
        self._in_one_piece = in_one_piece
        self._observer = observer
        self._ordered = engines[0].queue != "Fcfs"  # the order of arrival needs no hashes
        self._late_firsts = 0
        self._arrivals: list[Arrival] = []
        self._open: dict[int, Served] = {}
        self.workers = [self._worker(slot, settings, seed) for slot, settings in enumerate(engines)]
        self._states = [worker.state for worker in self.workers]
        self.fleet = VirtualFleet({worker.state.slot: worker.engine for worker in self.workers}, self)

    def _worker(self, slot: int, settings: EngineSettings, seed: int) -> Worker:
        rng = random.Random(f"engine-{seed}-{slot}")
        return Worker(SimEngine(settings, rng=rng, sink=self.view.sink(slot)), ReplicaState(slot))

    def plan(self, arrival: Arrival) -> None:
        """Put an arrival into the event heap. The request's id is the arrival's number."""
        prompt = arrival.prompt
        request = SimRequest(
            len(self._arrivals),
            prompt.tokens,
            prompt.blocks,
            prompt.output_tokens,
            arrival.at,
            output_hashes=prompt.output_blocks,
            vector=None if self._ordered else (),
            adapter=str(prompt.group) if self._adapters is not None else "",
            owner=prompt.owner,
        )
        self._arrivals.append(arrival)
        self.fleet.arrive(request)

    def route(self, request: SimRequest, now: float) -> int:
        self._poll_loads(now)
        number = _number(request)
        arrival = self._arrivals[number]
        query = self._query(arrival, now, stream=self._streams(number))
        states: Sequence[ReplicaState] = self._states
        if self._adapters is not None:
            states = self._adapters.narrow(request.adapter, states)
        choice = self._policy.choose(query, states)
        ticket = self._policy.routed(query, choice)
        if self._adapters is not None:
            self._adapters.routed(request.adapter, choice.slot)
        uncached = max(query.tokens - query.hits.get(choice.slot, 0.0), 1.0)
        served = self._open[number] = Served(arrival, ticket, uncached)
        self.served.append(served)
        if self._observer is not None:
            self._observer.routed(number, served)
        if not query.stream and ticket.predicted_ttft is not None:  # as routers do
            self.fleet.call_at(now + ticket.predicted_ttft, lambda: self._prefilled(served))
        self.view.hold_pending(arrival.prompt.blocks, choice.slot, now, ticket.predicted_ttft or 0.0)
        self._count(served, routed=1, prefill=uncached, tokens=request.prompt_tokens)
        return choice.slot

    def _streams(self, number: int) -> bool:
        return number * _GOLDEN % 1.0 >= self._in_one_piece

    def _query(self, arrival: Arrival, now: float, *, stream: bool) -> Query:
        blocks = arrival.prompt.blocks
        held = self.view.match(blocks, now)
        hits: Mapping[int, float] = {slot: float(depth * self.block_size) for slot, depth in held.items()}
        deepest = max(held.values(), default=0)
        return Query(now, float(arrival.prompt.tokens), hits, blocks, stream=stream, cached_chunks=deepest)

    def _count(self, served: Served, *, routed: int, prefill: float, tokens: int) -> None:
        state = self._states[served.ticket.slot]
        state.routed += routed
        state.prefill_tokens += prefill
        state.decode_blocks += tokens / _DECODE_BLOCK

    def _poll_loads(self, now: float) -> None:
        """The engines' figures are as old as the last poll. Polls are `load_interval` apart."""
        if now - self._loads_at < self._load_interval:
            return
        self._loads_at = now
        for worker in self.workers:
            load = worker.engine.load()
            state = worker.state
            state.running, state.waiting, state.kv_usage = load.running, load.waiting, load.kv_usage

    def first_token(self, request: SimRequest, slot: int, now: float) -> None:
        number = _number(request)
        served = self._open[number]
        served.first_token = now
        self._late_firsts += served.ttft > self._late_after
        if self._streams(number):
            self._policy.first_token(served.ticket, now)
            self._prefilled(served)

    def finished(self, request: SimRequest, slot: int, now: float, cached_tokens: int) -> None:
        served = self._open.pop(_number(request))
        served.finished, served.cached_tokens = now, cached_tokens
        self.done += 1
        self._prefilled(served)
        self._policy.finished(served.ticket, now, float(cached_tokens))
        if self._adapters is not None:
            self._adapters.ended(request.adapter, slot)
        self._count(served, routed=-1, prefill=0.0, tokens=-request.prompt_tokens)
        follow_up = self._source.after(served.arrival.client, now)
        if follow_up is not None:
            self.plan(follow_up)

    def _prefilled(self, served: Served) -> None:
        if served.prefilling:
            served.prefilling = False
            self._count(served, routed=0, prefill=-served.uncached, tokens=0)

    def stepped(self, slot: int, now: float, report: StepReport) -> None:
        self.view.stepped(slot, now)
        worker = self.workers[slot]
        worker.kv_usage.add(report.seconds, worker.engine.pool.usage)
        if self._observer is not None:
            self._observer.stepped(worker, report, now)

    def late(self, now: float) -> int:
        """Requests that waited too long for their first token, including those that still wait."""
        waiting = (served for served in self._open.values() if isnan(served.first_token))
        return self._late_firsts + sum(now - served.arrival.at > self._late_after for served in waiting)


def _number(request: SimRequest) -> int:
    return cast(int, request.request_id)
