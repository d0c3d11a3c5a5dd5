"""The plugin's features around one scheduler of vLLM: what is switched on, and what happens at each step."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from plumage.batching import make_queue
from plumage.batching.base import MAX_WAIT
from plumage.batching.limit import BatchLimit
from plumage_engine.vllm import batch_order
from plumage_engine.vllm.compat.scheduler import Scheduler, SchedulerOutput, complaints
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.order import RequestOrder
from plumage_engine.vllm.queue import FeatherQueue
from plumage_engine.vllm.settings import PluginFeather, PluginSettings
from plumage_engine.vllm.steps import StepTimes

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.scheduler import Request

__all__ = ["Features"]

_log = logging.getLogger("vllm.plumage")


class Features:
    """counters: what they count. guards: by feature, whether it is on, and why not. order: FEATHER's, None without."""

    def __init__(
        self, scheduler: Scheduler, settings: PluginSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.guards: dict[str, Guard] = {}
        self.order: RequestOrder | None = None
        self._scheduler = scheduler
        self._clock = clock
        self._times = StepTimes()
        self._rng = random.Random(settings.seed)
        self._limit: BatchLimit | None = None
        if settings.feather is not None:
            self._switch_feather_on(settings.feather)
        if settings.batch_limit == "Adaptive":
            self._switch_limit_on()
        on = [name for name, guard in self.guards.items() if guard.on]
        _log.info("plumage: on: %s", ", ".join(on) or "nothing")

    # -- at each step ------------------------------------------------------------------------------------------------

    def step_scheduled(self, output: SchedulerOutput) -> None:
        """vLLM's `schedule()` has returned."""
        now = self._clock()
        feather = self.guards.get("feather")
        if feather is not None and feather.on:
            try:
                self._times.begun(output, now)
                assert self.order is not None
                self.order.match(self._scheduler.running)
            except Exception as error:
                feather.failed(error)
        if self._limit is not None:
            self._adapt(self._limit, output)

    def step_ended(self, output: SchedulerOutput) -> None:
        """The device is done with the step; vLLM has not looked at its output yet."""
        feather = self.guards.get("feather")
        if feather is None or not feather.on:
            return
        try:
            outcome = self._times.ended(output, self._clock())
            if outcome is not None and self.order is not None:
                self.order.observe(outcome)
        except Exception as error:
            feather.failed(error)

    def request_ended(self, request: Request) -> None:
        """Finished or aborted, wherever it was."""
        feather = self.guards.get("feather")
        if feather is None or not feather.on or self.order is None:
            return
        try:
            self.order.end(request.request_id)
        except Exception as error:
            feather.failed(error)

    def _adapt(self, limit: BatchLimit, output: SchedulerOutput) -> None:
        guard = self.guards["batchLimit"]
        if not guard.on:
            return
        try:
            preempted = len(output.preempted_req_ids or ())
            limit.observe(len(self._scheduler.running), preempted, self._scheduler.kv_cache_manager.usage)
            self._scheduler.max_num_active_reqs = limit.limit
        except Exception as error:
            guard.failed(error)

    # -- at start ----------------------------------------------------------------------------------------------------

    def _switch_feather_on(self, config: PluginFeather) -> None:
        guard = self.guards["feather"] = Guard("feather", self.counters)
        reasons = complaints(self._scheduler) or _unfit(self._scheduler)
        if reasons:
            guard.refuse(reasons)
            return
        self.order = self._make_order(config)
        queue = FeatherQueue(self._scheduler, self.order, guard, self.counters)
        for request in self._scheduler.waiting:
            queue.add_request(request)
        self._scheduler.waiting = queue
        if config.order_batch:
            batch_order.install()  # for a worker in this process; others are reached by the entry point

    def _make_order(self, config: PluginFeather) -> RequestOrder:
        block = self._scheduler.hash_block_size
        max_wait = MAX_WAIT if config.max_wait_seconds is None else config.max_wait_seconds
        return RequestOrder(
            make_queue(config.policy, rng=self._rng, max_wait=max_wait, **config.options),
            block_tokens=block,
            stride=max(1, config.chunk_tokens // block),
            max_wait=max_wait,
            clock=self._clock,
            counters=self.counters,
        )

    def _switch_limit_on(self) -> None:
        most = self._scheduler.max_num_active_reqs
        self._limit = BatchLimit(most)

        def lift() -> None:
            self._scheduler.max_num_active_reqs = most

        self.guards["batchLimit"] = Guard("batchLimit", self.counters, lift)


def _unfit(scheduler: Scheduler) -> list[str]:
    """Why this engine's settings leave FEATHER nothing to do."""
    if scheduler.policy.value != "fcfs":
        return [f"--scheduling-policy {scheduler.policy.value} is in charge of the order, and FEATHER respects it"]
    if not scheduler.cache_config.enable_prefix_caching and scheduler.connector is None:
        return ["prefix caching is off, so requests have no hashes to be grouped by: --enable-prefix-caching"]
    return []
