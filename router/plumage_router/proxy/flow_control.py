"""The queue of requests while no replica has room: fair among classes and tenants, and with objectives.

A replica has room while it has few requests without a first token (`plumage.queueing.start_window`). While one has room
and nothing waits, a request passes at once. Otherwise it waits here and not in an engine, so a request that comes later
may still go first. A request that cannot meet its objective gets 429 at once, with the expected wait.

Each router has its own queue. Routers share the replicas because each one's window grows with what it starts there.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from plumage.prometheus import exposition
from plumage.queueing import Cost, FairQueue, Match, PromptCost, StartDelay, StartWindow
from plumage.queueing.fair_queue import ANSWER_WEIGHT
from plumage.routing.interface import ReplicaState
from plumage.settings.router_config import FlowControlConfig, PriorityClassConfig
from plumage_router.clock import monotonic
from plumage_router.fleet.replicas import Fleet, Load, Replica
from plumage_router.http.errors import RequestError, bad_header, class_refused, objective_missed, queue_full
from plumage_router.http.request import Request
from plumage_router.metrics import SECONDS, BufferedHistogram
from plumage_router.request.prompt import Prompt
from plumage_router.routing.decider import PrefillWork

__all__ = ["FlowControl", "Passage", "QueuedRequest", "Spent"]

CLASS_HEADER: Final = b"x-plumage-class"
OBJECTIVE_HEADER: Final = b"x-plumage-ttft-milliseconds"
_LEAST_OBJECTIVE, _MOST_OBJECTIVE = 10, 3_600_000  # milliseconds, as in the manifest
_AT_ONCE: Final = 8  # requests that leave the queue before other work gets its turn
_MEMORY: Final = 64  # requests over which the length of an answer is averaged
_ANSWER_TOKENS: Final = 256.0  # of an answer, until answers are known
_LONGEST_RETRY: Final = 60  # seconds
_EVERY_TENANT: Final = "*"
_MOST_HELD_BACK: Final = 8  # requests of a replica that do not count while FEATHER holds them back


class QueuedRequest(Protocol):
    """A request that waits here. It calls `end` when it ends."""

    def leave_queue(self) -> None:
        """Goes on: a replica has room."""
        ...

    def turn_away(self, error: RequestError) -> None:
        """Ends the request, which cannot start in time."""
        ...


class Refusal(StrEnum):
    """Why a request was refused. The value is a metric label."""

    FULL = "full"  # too many wait
    OBJECTIVE = "objective"  # it could not have met its objective
    LATE = "late"  # it waited until it could not meet its objective any more


class Passage(NamedTuple):
    """Where a request belongs, and what it is expected to cost.

    `objective`: seconds within which its first token is wanted. `answers`: how many it asks for, of `answer_tokens`.
    `chunks`: the chain of its prompt.
    """

    class_name: str
    tenant: str
    objective: float
    prompt_tokens: float
    answers: int
    answer_tokens: float
    chunks: Sequence[int]

    @property
    def cost(self) -> float:
        """The expected cost, in tokens of a prompt."""
        return self.prompt_tokens + ANSWER_WEIGHT * self.answers * self.answer_tokens


class Spent(NamedTuple):
    """What a request used: tokens of its prompt that were computed, and tokens of its answers."""

    computed: float
    answer: float
    complete: bool


class _Waiting(NamedTuple):
    since: float
    passage: Passage
    cost: PromptCost


class FlowControl:
    """config: None sends every request on at once. match: (chunks, tokens) that each slot holds of a chain.

    `passed`: requests that were sent on, by class.
    """

    def __init__(
        self, config: FlowControlConfig | None, fleet: Fleet, match: Match, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._fleet = fleet
        self._match = match
        fleet.listen(self._replica_changed)
        self._windows: dict[int, StartWindow] = {}  # by slot
        self._draining = False
        self._answer_tokens = _ANSWER_TOKENS
        self._delay = StartDelay(config.engine_queue if config is not None else 0.0)
        self._waiting: dict[QueuedRequest, _Waiting] = {}
        self._charged: dict[QueuedRequest, tuple[Passage, Cost]] = {}
        self.wait = BufferedHistogram(SECONDS)
        self.refused: Counter[Refusal] = Counter()
        self.passed: Counter[str] = Counter()
        self._queue: FairQueue[QueuedRequest] = FairQueue({"default": 1.0})
        self._queue.margin = self._delay.likely
        self.config: FlowControlConfig | None = None
        self._classes: dict[str, PriorityClassConfig] = {}
        self.configure(config)

    def __len__(self) -> int:
        return len(self._queue)

    def configure(self, config: FlowControlConfig | None) -> None:
        """Uses another configuration. Requests that wait keep their deadlines."""
        self.config = config
        self._classes = {one.name: one for one in config.classes} if config is not None else {}
        self._queue.configure({one.name: one.weight for one in self._classes.values()} or {"default": 1.0})
        self._wake()

    # -- a request's way ----------------------------------------------------------------------------------------------

    def place(self, request: Request, prompt: Prompt, tenant: str, tokens: int) -> Passage | None:
        """Returns the request's place in the queue; None if it needs none. Raises RequestError for a wrong header.

        tokens: that its prompt is expected to have.

        A request that continues a stored response has no choice of a replica, so it does not wait for one.
        """
        if not prompt.uses_device or prompt.previous is not None:
            return None
        return self.classify(
            request.headers,
            tenant,
            prompt_tokens=tokens,
            answers=prompt.answers if prompt.generates else 0,
            most_tokens=prompt.answer,
            chunks=prompt.chunks,
        )

    def classify(
        self,
        headers: Mapping[bytes, bytes],
        tenant: str,
        *,
        prompt_tokens: float,
        answers: int,
        most_tokens: int | None,
        chunks: Sequence[int],
    ) -> Passage | None:
        """Returns where the request belongs; None without flow control. Raises RequestError for a wrong header.

        answers: how many it asks for. most_tokens: the client's limit for each of them.
        """
        config = self.config
        if config is None:
            return None
        class_ = self._class_of(headers.get(CLASS_HEADER), tenant)
        wanted = _objective(headers.get(OBJECTIVE_HEADER))
        longest = class_.objective or config.max_seconds
        answer = self._answer_tokens if most_tokens is None else min(self._answer_tokens, most_tokens)
        return Passage(class_.name, tenant, min(wanted or longest, longest), prompt_tokens, answers, answer, chunks)

    def enter(
        self, request: QueuedRequest, passage: Passage, candidates: Sequence[Load], now: float
    ) -> Sequence[Load] | None:
        """Returns the replicas that the request may choose; None if it waits. Raises RequestError if it is refused."""
        if self.config is None:
            return candidates
        name = passage.class_name if passage.class_name in self._classes else next(iter(self._classes))
        if not self._queue and (roomy := self._roomy(candidates, now)):
            self.wait.observe(0.0)
            self._pass(request, passage, self._queue.charge(name, passage.tenant, passage.cost))
            return roomy
        deadline = now + passage.objective
        cost = PromptCost(passage.cost, passage.prompt_tokens, passage.chunks)
        tokens, score = passage.cost, None
        if self.config.order == "SloScore":
            tokens = score = cost.on({load.slot for load in candidates}, self._match, now)
        wait = self._queue.wait(name, passage.tenant, deadline, now, score=score)
        if now + wait + self._queue.margin > deadline:
            raise self._refuse(Refusal.OBJECTIVE, wait)
        if len(self._queue) >= self.config.max_requests:
            other = self._queue.crowded_out(name, passage.tenant)
            if other is None:
                raise self._refuse(Refusal.FULL, wait)
            self._drop(other, self._refuse(Refusal.FULL, wait))
        self._queue.add(request, name, passage.tenant, tokens, deadline, now)
        self._waiting[request] = _Waiting(now, passage, cost)
        self._wake()
        return None

    def with_room(self, candidates: Sequence[Load], now: float) -> Sequence[Load]:
        """Returns the replicas that a request from the queue may choose: those with room, if there are any."""
        return candidates if self.config is None else self._roomy(candidates, now) or candidates

    def end(self, request: QueuedRequest, spent: Spent | None) -> None:
        """Ends the account of a request. spent: what it used; None if nobody knows, so its expected cost stays."""
        if request in self._waiting:
            del self._waiting[request]
            self._queue.remove(request)
            return
        passed = self._charged.pop(request, None)
        if passed is None:
            return
        passage, cost = passed
        if spent is not None:
            self._queue.charge_actual(cost, spent.computed + ANSWER_WEIGHT * spent.answer)
            if spent.complete and passage.answers:
                self._answer_tokens += (spent.answer / passage.answers - self._answer_tokens) / _MEMORY
        self._wake()

    # -- what the engines do ------------------------------------------------------------------------------------------

    def started(self, prefill: PrefillWork, now: float) -> None:
        """Notes that a replica sent the first token of a request."""
        if self.config is None:
            return
        took = now - prefill.since
        self._delay.add(took)
        self._queue.margin = self._delay.likely
        self._window(prefill.load).started(prefill.work, took, now, self.config.engine_queue)
        self._wake()

    def _replica_changed(self, replica: Replica, added: bool) -> None:
        """Notes that a slot has a new replica, or none."""
        self._windows.pop(replica.slot, None)
        self._wake()

    # -- time ---------------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Turns late requests away, and lets others go."""
        self.wait.flush()
        if not self._queue:
            return
        for request in self._queue.late(now):
            if (entry := self._waiting.get(request)) is not None:
                self._drop(request, self._refuse(Refusal.LATE, now - entry.since))
        self._drain(now)

    def close(self, error: RequestError) -> None:
        """Turns away all requests that wait, so that their clients ask another router."""
        for request in list(self._waiting):
            self._drop(request, error)

    # -- for people ---------------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Returns the metrics in Prometheus' text format; nothing without flow control."""
        if self.config is None:
            return
        name = "plumage_router_queue_"
        waiting = self._queue.waiting()
        yield from exposition.gauges(
            name + "requests", "Requests that wait until a replica has room.", "class", waiting
        )
        passed = {class_name: self.passed[class_name] for class_name in waiting}
        yield from exposition.counters(name + "passed", "Requests that were sent on, by class.", "class", passed)
        refused = {reason.value: self.refused[reason] for reason in Refusal}
        text = "Requests that the queue refused, by reason."
        yield from exposition.counters(name + "refused", text, "reason", refused)
        yield from self.wait.lines(name + "wait_seconds", "Time that requests waited until a replica had room.")

    def document(self) -> list[dict[str, Any]]:
        """Returns what waits in each class, for the status."""
        if self.config is None:
            return []
        waiting = self._queue.waiting()
        return [
            {
                "class": class_.name,
                "weight": class_.weight,
                "waiting": waiting[class_.name],
                "passed": self.passed[class_.name],
            }
            for class_ in self._classes.values()
        ]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _class_of(self, header: bytes | None, tenant: str) -> PriorityClassConfig:
        allowed = [class_ for class_ in self._classes.values() if _is_open(class_, tenant)]
        if not allowed:
            raise class_refused("No class of this pool is open to this key.")
        if header is None:
            return allowed[0]
        name = header.strip().decode("ascii", "replace")
        class_ = self._classes.get(name)
        if class_ is None:
            raise bad_header("X-Plumage-Class", f"there is no class {name!r}; there are {', '.join(self._classes)}")
        if class_ not in allowed:
            raise class_refused(f"The class {name} is not open to this key.")
        return class_

    def _window(self, load: ReplicaState) -> StartWindow:
        window = self._windows.get(load.slot)
        if window is None:
            window = self._windows[load.slot] = StartWindow()
        return window

    def _roomy(self, candidates: Sequence[Load], now: float) -> Sequence[Load]:
        return [load for load in candidates if self._has_room(load, now)]

    def _has_room(self, load: Load, now: float) -> bool:
        assert self.config is not None
        held_back = min(_MOST_HELD_BACK, load.held_back * load.starting // load.waiting) if load.waiting else 0
        counted = load.starting - held_back
        work = load.starting_work * counted / load.starting if held_back else load.starting_work
        return self._window(load).has_room(counted, work, now, self.config.engine_queue)

    def _pass(self, request: QueuedRequest, passage: Passage, cost: Cost) -> None:
        self._charged[request] = passage, cost
        self.passed[cost.name] += 1

    def _wake(self) -> None:
        """Lets requests go soon. Not at once: the caller may be in the middle of a request."""
        if self._queue and not self._draining:
            self._draining = True
            self._loop.call_soon(self._drain_soon)

    def _drain_soon(self) -> None:
        self._draining = False
        self._drain(monotonic())

    def _drain(self, now: float) -> None:
        for _ in range(_AT_ONCE):
            if not self._queue or not self._may_go(now):
                return
            request, cost = self._queue.next(now, self._compute(now))
            waiting = self._waiting.pop(request)
            if waiting.since + waiting.passage.objective <= now + self._queue.margin:  # since the last sweep
                self._queue.refuse(cost)
                request.turn_away(self._refuse(Refusal.LATE, now - waiting.since))
                continue
            self.wait.observe(now - waiting.since)
            self._pass(request, waiting.passage, cost)
            request.leave_queue()
        self._wake()

    def _may_go(self, now: float) -> bool:
        return self.config is None or any(self._has_room(load, now) for load in self._fleet.candidates(now))

    def _compute(self, now: float) -> Callable[[QueuedRequest], float] | None:
        """Returns what a request would cost on a replica with room; None where deadlines alone decide."""
        if self.config is None or self.config.order == "Deadline":
            return None
        roomy = {load.slot for load in self._roomy(self._fleet.candidates(now), now)}
        return lambda request: self._waiting[request].cost.on(roomy, self._match, now)

    def _drop(self, request: QueuedRequest, error: RequestError) -> None:
        if self._waiting.pop(request, None) is not None:
            self._queue.remove(request)
            request.turn_away(error)

    def _refuse(self, reason: Refusal, wait: float) -> RequestError:
        self.refused[reason] += 1
        retry = min(_LONGEST_RETRY, max(1, math.ceil(wait)))
        return queue_full(retry) if reason is Refusal.FULL else objective_missed(wait, retry)


def _is_open(class_: PriorityClassConfig, tenant: str) -> bool:
    return not class_.tenants or tenant in class_.tenants or _EVERY_TENANT in class_.tenants


def _objective(header: bytes | None) -> float | None:
    """Returns seconds; None without the header."""
    if header is None:
        return None
    text = header.strip()
    if not text.isdigit() or len(text) > 7 or not _LEAST_OBJECTIVE <= int(text) <= _MOST_OBJECTIVE:
        limits = f"must be a whole number from {_LEAST_OBJECTIVE} to {_MOST_OBJECTIVE}"
        raise bad_header("X-Plumage-TTFT-Milliseconds", limits)
    return int(text) / 1000
