"""A fleet whose size changes, in virtual time: replicas start, serve, drain and end; an autoscaler may observe it.

An observation has what routers and agents report, made from the same engines and the same view of the directory: rates
and percentiles over the last minute, the present KV usage, and the miss-ratio curve of the routed prompts. A replica
serves `START` seconds after its request, with an empty cache. There is no warm-up from peers, so the cost of a new
replica is overstated.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from plumage.autoscaling import CacheHotness, PoolLoad, ReplicaLoad
from plumage.blocks.events import BlockEvent, Cleared, EventSink, Removed, Stored
from plumage.mrc import ReuseSampler
from plumage.routing.interface import Query, ReplicaState, RoutingPolicy, Ticket
from plumage_bench.virtual_time.directory_view import DirectoryView
from plumage_bench.virtual_time.virtual_fleet import Hooks, VirtualFleet
from plumage_bench.workloads.arrivals import Arrival
from plumage_engine.simulator.engine.request import SimRequest, StepReport
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine

__all__ = ["MINUTE", "START", "ElasticFleet", "Look"]

MINUTE: Final = 60.0
START: Final = 20.0
_FADE: Final = 0.9  # factor of the curve's old accesses at each observation
_LONGEST_CURVE: Final = 1 << 18  # blocks


@dataclass(slots=True)
class _Past:
    """What happened in the last minute, each entry with its time."""

    entries: deque[tuple[float, int, float]] = field(default_factory=deque)

    def add(self, now: float, slot: int, value: float) -> None:
        self.entries.append((now, slot, value))

    def until(self, now: float) -> Sequence[tuple[float, int, float]]:
        while self.entries and self.entries[0][0] <= now - MINUTE:
            self.entries.popleft()
        return self.entries


def _tail(values: Iterable[float]) -> float | None:
    """The 95th percentile."""
    found = sorted(values)
    return found[int(0.95 * (len(found) - 1))] if found else None


@dataclass(frozen=True, slots=True)
class Look:
    """replicas: ready ones. wanted: requested ones. hit_ratio: of the last minute; None without an answer."""

    at: float
    replicas: int
    wanted: int
    hit_ratio: float | None


class ElasticFleet(Hooks):
    """settings: of each engine. policy: routes, and is informed about removed replicas."""

    def __init__(self, settings: EngineSettings, policy: RoutingPolicy, replicas: int, *, seed: int) -> None:
        self.fleet = VirtualFleet({}, self)
        self.looks: list[Look] = []
        self.answered = self.cached = 0.0  # prompt tokens of all answers
        self._settings, self._policy, self._seed = settings, policy, seed
        self._view = DirectoryView()
        self._states: dict[int, ReplicaState] = {}  # ready replicas
        self._starting: set[int] = set()
        self._held: dict[int, Counter[int]] = {}
        self._uses: Counter[int] = Counter()
        self._slots = 0
        self._arrivals: list[Arrival] = []
        self._tickets: dict[int, Ticket] = {}
        self._unanswered = 0
        self._came = 0
        self._tokens, self._firsts, self._waits = _Past(), _Past(), _Past()
        self._prompts, self._hits = _Past(), _Past()
        self._sampler = ReuseSampler(largest=_LONGEST_CURVE)
        for _ in range(replicas):
            self._ready(self._begin())

    @property
    def wanted(self) -> int:
        return len(self._states) + len(self._starting)

    @property
    def ready(self) -> list[int]:
        return list(self._states)

    def serve(self, arrivals: Iterable[Arrival], until: float) -> None:
        """Serve all arrivals in order, and handle all other events up to then."""
        for arrival in arrivals:
            self._plan(arrival)
        self.fleet.run(until=until)

    def every(self, seconds: float, until: float, act: Callable[[float], None]) -> None:
        """Observe at regular intervals."""
        for count in range(1, int(until / seconds) + 1):
            self.fleet.call_at(count * seconds, lambda at=count * seconds: act(at))  # type: ignore[misc]

    def resize(self, wanted: int, *, leaving: Sequence[int] = ()) -> None:
        """Start replicas, or drain replicas in the order of `leaving`."""
        for _ in range(wanted - self.wanted):
            slot = self._begin()
            self._starting.add(slot)
            self.fleet.call_at(self.fleet.now + START, lambda slot=slot: self._ready(slot))  # type: ignore[misc]
        for slot in leaving[: max(0, self.wanted - wanted)]:
            self._states.pop(slot)  # requests in flight there are answered; it gets no new ones
            self._held.pop(slot)
            self._policy.forget(slot)

    def cache_hotness(self) -> list[CacheHotness]:
        """For each replica, the pool-wide uses of what it caches: agents report these as hotness."""
        return [
            CacheHotness(str(slot), hotness=float(sum(self._uses[block] for block in self._held[slot])))
            for slot in self._states
        ]

    def load(self, now: float) -> PoolLoad:
        """The pool's load as the operator would see it."""
        self._sampler.age(_FADE)
        prompts = sum(value for _, _, value in self._prompts.until(now))
        hits = sum(value for _, _, value in self._hits.until(now))
        ratio = hits / prompts if prompts else None
        tokens: Counter[int] = Counter()
        for _, slot, value in self._tokens.until(now):
            tokens[slot] += int(value)
        came, self._came = self._came, 0
        self.looks.append(Look(now, len(self._states), self.wanted, ratio))
        return PoolLoad(
            wanted=self.wanted,
            replicas=tuple(self._replica(slot, tokens[slot], now) for slot in self._states)
            + tuple(ReplicaLoad(id=str(slot), ready=False, warming=True) for slot in sorted(self._starting)),
            seen=now,
            arrivals=came,
            in_flight=self._unanswered,
            waiting=0,
            hit_ratio=ratio,
            ttft=_tail(value for _, _, value in self._firsts.until(now)),
            queue_wait=_tail(value for _, _, value in self._waits.until(now)),
            curve=self._sampler.curve(),
            cache=float(self._settings.cache_blocks),
        )

    def _replica(self, slot: int, tokens: int, now: float) -> ReplicaLoad:
        load = self.fleet.engines[slot].load()
        in_flight = float(load.running + load.waiting)
        return ReplicaLoad(
            id=str(slot), seen=now, total_tokens_per_second=tokens / MINUTE, in_flight=in_flight, kv_usage=load.kv_usage
        )

    def _begin(self) -> int:
        slot, self._slots = self._slots, self._slots + 1
        self._held[slot] = Counter()
        rng = random.Random(f"engine-{self._seed}-{slot}")
        self.fleet.add(slot, SimEngine(self._settings, rng=rng, sink=self._sink(slot)))
        return slot

    def _ready(self, slot: int) -> None:
        self._starting.discard(slot)
        self._states[slot] = ReplicaState(slot)

    def _sink(self, slot: int) -> EventSink:
        """The view's sink, with a count of cached blocks."""
        pass_on, held = self._view.sink(slot), self._held[slot]

        def record(event: BlockEvent) -> None:
            if isinstance(event, Stored):
                held.update(event.hashes)
            elif isinstance(event, Removed):
                held.subtract(event.hashes)
                for block in event.hashes:
                    if held[block] <= 0:
                        del held[block]
            elif isinstance(event, Cleared):
                held.clear()
            pass_on(event)

        return record

    def _plan(self, arrival: Arrival) -> None:
        prompt = arrival.prompt
        number = len(self._arrivals)
        self._arrivals.append(arrival)
        self.fleet.arrive(
            SimRequest(number, prompt.tokens, prompt.blocks, prompt.output_tokens, arrival.at, prompt.output_blocks)
        )

    def route(self, request: SimRequest, now: float) -> int:
        number, blocks = cast(int, request.request_id), request.block_hashes
        self._uses.update(blocks)
        self._sampler.access_all(blocks)
        self._came += 1
        self._unanswered += 1
        held, size = self._view.match(blocks, now), self._settings.block_size
        hits = {slot: float(depth * size) for slot, depth in held.items() if slot in self._states}
        deepest = max(held.values(), default=0)
        query = Query(now, float(request.prompt_tokens), hits, blocks, cached_chunks=deepest)
        for slot, state in self._states.items():
            load = self.fleet.engines[slot].load()
            state.running, state.waiting, state.kv_usage = load.running, load.waiting, load.kv_usage
        choice = self._policy.choose(query, list(self._states.values()))
        ticket = self._tickets[number] = self._policy.routed(query, choice)
        self._view.hold_pending(blocks, choice.slot, now, ticket.predicted_ttft or 0.0)
        self._states[choice.slot].routed += 1
        return choice.slot

    def stepped(self, slot: int, now: float, report: StepReport) -> None:
        self._view.stepped(slot, now)
        for request in report.admitted:
            began = now - report.seconds
            self._waits.add(now, slot, began - self._arrivals[cast(int, request)].at)

    def first_token(self, request: SimRequest, slot: int, now: float) -> None:
        self._policy.first_token(self._tickets[cast(int, request.request_id)], now)
        self._firsts.add(now, slot, now - request.arrival)

    def finished(self, request: SimRequest, slot: int, now: float, cached_tokens: int) -> None:
        self._policy.finished(self._tickets.pop(cast(int, request.request_id)), now, float(cached_tokens))
        self._unanswered -= 1
        if slot in self._states:
            self._states[slot].routed -= 1
        self._tokens.add(now, slot, request.prompt_tokens + request.output_tokens)
        self._prompts.add(now, slot, request.prompt_tokens)
        self._hits.add(now, slot, cached_tokens)
        self.answered += request.prompt_tokens
        self.cached += cached_tokens
