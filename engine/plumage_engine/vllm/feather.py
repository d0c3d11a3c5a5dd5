"""FEATHER in one scheduler of vLLM: its queue in place of vLLM's, and what it learns from each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from plumage.batching import make_queue
from plumage_engine.vllm.compat.scheduler import Scheduler, SchedulerOutput, complaints
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.queue import FeatherQueue
from plumage_engine.vllm.request_order import RequestOrder
from plumage_engine.vllm.settings import PluginFeather
from plumage_engine.vllm.steps import StepTimes

if TYPE_CHECKING:
    from plumage.batching.interface import Uniform
    from plumage_engine.vllm.compat.scheduler import Request

__all__ = ["Feather"]


class Feather:
    """order: the policy's, over vLLM's requests. clock: seconds, monotonic."""

    def __init__(
        self,
        scheduler: Scheduler,
        config: PluginFeather,
        guard: Guard,
        counters: Counters,
        rng: Uniform,
        clock: Callable[[], float],
    ) -> None:
        self.order = _make_order(scheduler, config, counters, rng, clock)
        self._scheduler = scheduler
        self._counters = counters
        self._clock = clock
        self._times = StepTimes()
        queue = FeatherQueue(scheduler, self.order, guard, counters)
        for request in scheduler.waiting:
            queue.add_request(request)
        scheduler.waiting = self._queue = queue

    def change(self, config: PluginFeather, rng: Uniform) -> None:
        """Another policy, between two steps. It begins with nothing learned."""
        order = _make_order(self._scheduler, config, self._counters, rng, self._clock)
        order.take_over(self.order, self._scheduler.running)
        self.order = order
        self._queue.follow(order)

    @property
    def held_back(self) -> int:
        """Waiting requests that the policy keeps back on purpose."""
        return self._queue.held_back

    def scheduled(self, output: SchedulerOutput) -> None:
        self._times.begun(output, self._clock())
        self.order.match(self._scheduler.running)

    def ended(self, output: SchedulerOutput) -> None:
        outcome = self._times.ended(output, self._clock())
        if outcome is not None:
            self.order.observe(outcome)

    def forget(self, request: Request) -> None:
        self.order.end(request.request_id)

    @staticmethod
    def reasons_against(scheduler: Scheduler) -> list[str]:
        """Why it can't work with this vLLM, or has nothing to do with its options; empty when it can."""
        return complaints(scheduler) or _unfit(scheduler)


def _make_order(
    scheduler: Scheduler, config: PluginFeather, counters: Counters, rng: Uniform, clock: Callable[[], float]
) -> RequestOrder:
    block = scheduler.hash_block_size
    return RequestOrder(
        make_queue(config.policy, rng=rng, max_wait=config.max_wait_seconds, **config.options),
        block_tokens=block,
        stride=max(1, config.chunk_tokens // block),
        max_wait=config.max_wait_seconds,
        clock=clock,
        counters=counters,
    )


def _unfit(scheduler: Scheduler) -> list[str]:
    if scheduler.policy.value != "fcfs":
        return [f"--scheduling-policy {scheduler.policy.value} is in charge of the order, and FEATHER respects it"]
    if not scheduler.cache_config.enable_prefix_caching and scheduler.connector is None:
        return ["prefix caching is off, so requests have no hashes to be grouped by: --enable-prefix-caching"]
    return []
