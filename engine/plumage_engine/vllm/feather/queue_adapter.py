"""FEATHER as vLLM's waiting queue, without a copy of `schedule()` (FEATHER §4.4; vLLM's `RequestQueue`).

vLLM's scheduler calls `bool(queue)` before each admission: False while requests wait means STOP. Elsewhere it reads the
length, which is always correct, or the engine would believe that it has no work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from plumage.batching import StepOutcome, make_queue
from plumage.randomness import Randomness
from plumage.settings.engine_policies import FeatherConfig
from plumage_engine.vllm.compat.scheduler import (
    FCFSRequestQueue,
    Request,
    RequestQueue,
    Scheduler,
    SchedulerOutput,
    problems,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.feather.waiting_order import WaitingOrder
from plumage_engine.vllm.guard import Guard

__all__ = ["Feather", "FeatherQueue"]


class FeatherQueue(RequestQueue):
    """The waiting requests in the policy's order; after a failure in their order of arrival, as vLLM has them.

    `_waiting` is kept beside the policy, so that a failure of the policy loses no request (decision 0244).
    """

    def __init__(self, scheduler: Scheduler, order: WaitingOrder, guard: Guard, counters: Counters) -> None:
        self._scheduler = scheduler
        self._order = order
        self._guard = guard
        self._counters = counters
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._plain: FCFSRequestQueue | None = None
        self._chosen: Request | None = None  # vLLM pops what it peeked at
        self._stopped = 0  # requests that waited at the policy's last choice with room in the batch, if it was STOP
        guard.fall_back = self._fall_back

    @property
    def held_back(self) -> int:
        """Requests that wait because the policy chose STOP although the batch has room: no sign of overload. One that
        came since waits for the next step."""
        return min(self._stopped, len(self._waiting)) if self._plain is None else 0

    def follow(self, order: WaitingOrder) -> None:
        """Use another order, which has all waiting requests, from now on."""
        self._order, self._chosen, self._stopped = order, None, 0

    # -- requests arrive and leave -------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        self._chosen = None
        self._waiting[request.request_id] = request
        if self._plain is not None:
            self._plain.add_request(request)
            return
        try:
            self._order.insert(request)
        except Exception as error:
            self._guard.failed(error)

    def prepend_request(self, request: Request) -> None:
        """Makes a preempted request, or one that was put aside, the first again, as in vLLM's own queue."""
        self._chosen = None
        self._waiting[request.request_id] = request
        self._waiting.move_to_end(request.request_id, last=False)
        if self._plain is not None:
            self._plain.prepend_request(request)
            return
        try:
            self._order.put_back(request)
        except Exception as error:
            self._guard.failed(error)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Unknown requests are ignored."""
        self._chosen = None
        here = [request for request in requests if self._waiting.pop(request.request_id, None) is not None]
        if self._plain is not None:
            self._plain.remove_requests(here)
            return
        try:
            for request in here:
                self._order.remove(request)
        except Exception as error:
            self._guard.failed(error)

    # -- the choice ----------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """False for STOP, or without waiting requests.

        vLLM also calls it with a full batch, but admits no request then: the policy is not asked and learns nothing.
        """
        if self._plain is not None:
            return bool(self._plain)
        if not self._waiting:
            return False
        scheduler = self._scheduler  # paused streaming sessions are not in `running`, and have a slot all the same
        if len(scheduler.running) + scheduler.num_waiting_for_streaming_input >= scheduler.max_num_active_reqs:
            self._stopped = 0
            return True
        return self._ask() is not None

    def peek_request(self) -> Request:
        """IndexError from an empty queue, as in vLLM's own."""
        if self._plain is not None:
            return self._plain.peek_request()
        return self._chosen or self._ask() or self._first()

    def pop_request(self) -> Request:
        request = self.peek_request()
        self._chosen = None
        self._waiting.pop(request.request_id, None)
        if self._plain is not None:
            self._plain.remove_request(request)
            return request
        try:
            self._order.pop(request)
        except Exception as error:
            self._guard.failed(error)
        return request

    def _ask(self) -> Request | None:
        """The policy's choice, None for STOP; after a failure the oldest request."""
        if not self._waiting:
            return None
        try:
            self._chosen = self._order.choose(self._scheduler.running)
        except Exception as error:
            self._guard.failed(error)
            return self._first()
        self._stopped = len(self._waiting) if self._chosen is None else 0
        if self._stopped:
            self._counters.add("stops")
        return self._chosen

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._waiting.values()))

    def oldest(self, limit: int) -> Iterator[Request]:
        """Up to `limit` requests, preempted ones first, then by arrival. Do not change the queue while reading it."""
        return islice(self._waiting.values(), limit)

    def _first(self) -> Request:
        """The oldest request: vLLM asks although the policy chose STOP, or the policy is off."""
        for request in self._waiting.values():
            return request
        raise IndexError("peek from an empty queue")

    def _fall_back(self) -> None:
        self._plain = FCFSRequestQueue(self._waiting.values())


class Feather:
    """FEATHER in one scheduler of vLLM: installs the queue and measures each step for the policy.

    order: the policy's order of vLLM's requests.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        config: FeatherConfig,
        guard: Guard,
        counters: Counters,
        rng: Randomness,
        clock: Callable[[], float],
    ) -> None:
        self.order = _make_order(scheduler, config, counters, rng, clock)
        self._scheduler = scheduler
        self._counters = counters
        self._clock = clock
        queue = FeatherQueue(scheduler, self.order, guard, counters)
        for request in scheduler.waiting:
            queue.add_request(request)
        scheduler.waiting = self._queue = queue

    def change(self, config: FeatherConfig, rng: Randomness) -> None:
        """Change the policy between two steps. The new one has learned nothing."""
        order = _make_order(self._scheduler, config, self._counters, rng, self._clock)
        order.take_over(self.order, self._scheduler.running)
        self.order = order
        self._queue.follow(order)

    @property
    def held_back(self) -> int:
        """Waiting requests that the policy holds back on purpose."""
        return self._queue.held_back

    def scheduled(self, output: SchedulerOutput) -> None:
        self.order.match(self._scheduler.running)

    def ended(self, output: SchedulerOutput, outcome: StepOutcome | None) -> None:
        if outcome is not None:
            self.order.observe(outcome)

    def forget(self, request: Request) -> None:
        self.order.end(request.request_id)

    @staticmethod
    def reasons_against(scheduler: Scheduler) -> list[str]:
        """Why this vLLM or its options conflict with FEATHER; empty when they do not."""
        return problems(scheduler) or _conflicting_options(scheduler)


def _make_order(
    scheduler: Scheduler, config: FeatherConfig, counters: Counters, rng: Randomness, clock: Callable[[], float]
) -> WaitingOrder:
    block = scheduler.hash_block_size
    return WaitingOrder(
        make_queue(config.policy, rng=rng, max_wait=config.max_wait_seconds, **config.options),
        block_tokens=block,
        stride=max(1, config.chunk_tokens // block),
        max_wait=config.max_wait_seconds,
        clock=clock,
        counters=counters,
    )


def _conflicting_options(scheduler: Scheduler) -> list[str]:
    if scheduler.policy.value != "fcfs":
        return [f"--scheduling-policy {scheduler.policy.value} sets the order, and FEATHER does not replace it"]
    if not scheduler.cache_config.enable_prefix_caching and scheduler.connector is None:
        return ["prefix caching is off, so requests have no hashes to be grouped by: --enable-prefix-caching"]
    return []
