"""Many engines in virtual time: an event heap instead of a clock, deterministic by seed.

Events at the same instant happen in the order in which they were planned, so a run depends only on its inputs. The
caller plans timers and arrivals. Arrivals are planned before the run or from a hook, as for a client that sends its
next turn after an answer. The caller also chooses an engine for each arrival. The fleet steps the engines, and reports
first tokens and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush

from plumage.errors import StateError
from plumage_engine.simulator.engine.request import SimRequest, StepReport
from plumage_engine.simulator.engine.sim_engine import SimEngine

__all__ = ["Hooks", "VirtualFleet"]


class Hooks:
    """What a caller decides and is informed about; override the methods that you need. `slot` names an engine, `now` is
    virtual seconds."""

    def route(self, request: SimRequest, now: float) -> int | None:
        """The slot for the request that arrives now. None refuses it."""
        raise StateError("a fleet of engines needs Hooks.route to choose one for each request")

    def first_token(self, request: SimRequest, slot: int, now: float) -> None:
        """The request has its first token."""

    def finished(self, request: SimRequest, slot: int, now: float, cached_tokens: int) -> None:
        """The request has its last token; `cached_tokens` of its prompt were found in the cache."""

    def stepped(self, slot: int, now: float, report: StepReport) -> None:
        """A step of the engine has ended."""


class VirtualFleet:
    """Engines by slot, and one event heap. `now` is the time of the present event."""

    def __init__(self, engines: Mapping[int, SimEngine], hooks: Hooks) -> None:
        self.now = 0.0
        self.engines = dict(engines)
        self.hooks = hooks
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._busy: set[int] = set()
        self._requests: dict[int, dict[object, SimRequest]] = {slot: {} for slot in self.engines}

    def add(self, slot: int, engine: SimEngine) -> None:
        """Add an engine. StateError if the slot is taken."""
        if slot in self.engines:
            raise StateError(f"slot {slot} has an engine")
        self.engines[slot] = engine
        self._requests[slot] = {}

    def call_at(self, when: float, event: Callable[[], None]) -> None:
        """Plan a call. StateError if `when` has passed."""
        if when < self.now:
            raise StateError(f"an event at {when} s can't be planned at {self.now} s")
        self._planned += 1
        heappush(self._events, (when, self._planned, event))

    def arrive(self, request: SimRequest) -> None:
        """Plan a request's arrival, at `request.arrival`."""
        self.call_at(request.arrival, lambda: self._route(request))

    def run(self, until: float = float("inf")) -> float:
        """Handle events up to `until`, or until none is left; returns the time reached."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, event = heappop(events)
            event()
        return self.now

    def _route(self, request: SimRequest) -> None:
        slot = self.hooks.route(request, self.now)
        if slot is not None:
            self.submit(slot, request)

    def submit(self, slot: int, request: SimRequest) -> None:
        """Send a request to an engine now, without asking `Hooks.route`."""
        self.engines[slot].submit(request, self.now)
        self._requests[slot][request.request_id] = request
        if slot not in self._busy:
            self._start(slot)

    def _start(self, slot: int) -> None:
        engine = self.engines[slot]
        report = engine.step(self.now)
        if report is None:
            self._busy.discard(slot)
            return
        self._busy.add(slot)
        self.call_at(self.now + report.seconds, lambda: self._end(slot, engine, report))

    def _end(self, slot: int, engine: SimEngine, report: StepReport) -> None:
        engine.end_step(self.now)
        requests, hooks, now = self._requests[slot], self.hooks, self.now
        for request_id in report.first_tokens:
            if request_id in requests:
                hooks.first_token(requests[request_id], slot, now)
        for request_id, cached_tokens in report.finished:
            request = requests.pop(request_id, None)
            if request is not None:
                hooks.finished(request, slot, now, cached_tokens)
        hooks.stepped(slot, now, report)
        self._start(slot)
