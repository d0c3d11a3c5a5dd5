"""The plugin's features around one scheduler of vLLM: what is switched on, and who is told of each step.

Each feature has a guard: what fails in one leaves the others, and vLLM, as they are. That begins at its import: what a
feature needs of vLLM is imported where it is installed, and a name that is gone leaves that feature off.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plumage.errors import ConfigurationError
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.settings import PluginEviction, PluginFeather, PluginSettings

if TYPE_CHECKING:
    from plumage_engine.vllm.batch_limit import AdaptiveLimit
    from plumage_engine.vllm.compat.base import Request, Scheduler, SchedulerOutput
    from plumage_engine.vllm.feather.request_order import RequestOrder
    from plumage_engine.vllm.feather.waiting_queue import Feather
    from plumage_engine.vllm.offload.host_tier.chunk_hotness import Prior
    from plumage_engine.vllm.offload.host_tier.store_manager import SelectiveManager

__all__ = ["Features"]

_log = logging.getLogger("vllm.plumage")
_BY_ARRIVAL = PluginFeather(policy="Fcfs", order_batch=False)
_TIER = "plumage_engine.vllm.offload.spec"
_ELSEWHERE = ("mp", "ray")
"""vLLM's executors whose workers are other processes."""
_Listener = tuple[Guard, Callable[[Any], None]]


class Features:
    """counters: what they count. guards: by feature, whether it is on, and why not. clock: seconds, monotonic."""

    def __init__(
        self, scheduler: Scheduler, settings: PluginSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.guards: dict[str, Guard] = {}
        self._at_schedule: list[_Listener] = []
        self._at_end: list[_Listener] = []
        self._at_free: list[_Listener] = []
        self._scheduler = scheduler
        self._clock = clock
        self._feather = self._make_feather(settings.feather)
        if self._feather is not None:
            self._order_batch(settings.feather)
        if settings.batch_limit == "Adaptive":
            self._adapt_limit()
        if settings.eviction is not None:
            self._order_eviction(settings.eviction)
        on = [name for name, guard in self.guards.items() if guard.on]
        _log.info("plumage: on: %s", ", ".join(on) or "nothing")

    @property
    def order(self) -> RequestOrder | None:
        """FEATHER's; None without it."""
        return None if self._feather is None else self._feather.order

    @property
    def held_back(self) -> int:
        """Waiting requests that FEATHER keeps back on purpose; 0 without it."""
        return 0 if self._feather is None else self._feather.held_back

    def change_feather(self, config: PluginFeather | None) -> bool:
        """Between two steps: another batching policy, None for the order of arrival. False: it is as it was.
        ConfigurationError where FEATHER is off. Whether the batch is sorted is decided at the engine's start."""
        if config == self.settings.feather:
            return False
        if self._feather is None:
            self._feather = self._make_feather(config)
        elif self.guards["feather"].on:
            self._feather.change(config or _BY_ARRIVAL, self._rng())
        if (guard := self.guards.get("feather")) is not None and not guard.on:
            raise ConfigurationError(f"FEATHER is off in this engine: {guard.reason}")
        self._order_batch(config)
        self.settings = self.settings.model_copy(update={"feather": config})
        _log.info("plumage: feather: the policy is %s from now on", (config or _BY_ARRIVAL).policy)
        return True

    def step_scheduled(self, output: SchedulerOutput) -> None:
        """vLLM's `schedule()` has returned. Preemptions are counted whichever features are on."""
        if preempted := getattr(output, "preempted_req_ids", None):
            self.counters.add("preemptions", len(preempted))
        _tell(self._at_schedule, output)

    def step_ended(self, output: SchedulerOutput) -> None:
        """The device is done with the step; vLLM has not looked at its output yet."""
        _tell(self._at_end, output)

    def request_ended(self, request: Request) -> None:
        """Finished or aborted, wherever it was."""
        _tell(self._at_free, request)

    # -- at start ----------------------------------------------------------------------------------------------------

    def _guard(self, feature: str) -> Guard:
        guard = self.guards[feature] = Guard(feature, self.counters)
        return guard

    def _make_feather(self, config: PluginFeather | None) -> Feather | None:
        if config is None:
            return None
        guard = self._guard("feather")
        feather = attempt(guard, lambda: self._start_feather(config, guard))
        if feather is not None:
            self._at_schedule.append((guard, feather.scheduled))
            self._at_end.append((guard, feather.ended))
            self._at_free.append((guard, feather.forget))
        return feather

    def _start_feather(self, config: PluginFeather, guard: Guard) -> Feather | None:
        from plumage_engine.vllm.feather.waiting_queue import Feather

        if reasons := Feather.reasons_against(self._scheduler):
            guard.refuse(reasons)
            return None
        return Feather(self._scheduler, config, guard, self.counters, self._rng(), self._clock)

    def _order_batch(self, config: PluginFeather | None) -> None:
        """In this process; workers in others are reached by the entry point, and tell their own logs."""
        if config is None or not config.order_batch or "batchOrder" in self.guards:
            return
        from plumage_engine.vllm.feather import batch_order

        vllm_config = getattr(self._scheduler, "vllm_config", None)
        if getattr(getattr(vllm_config, "parallel_config", None), "distributed_executor_backend", None) in _ELSEWHERE:
            _log.info("plumage: batchOrder: the workers are processes of their own; their logs tell if it fails")
            return
        batch_order.install(self._guard("batchOrder"), vllm_config)

    def _adapt_limit(self) -> None:
        guard = self._guard("batchLimit")
        limit = attempt(guard, lambda: self._make_limit(guard))
        if limit is not None:
            guard.fall_back = limit.lift
            self._at_schedule.append((guard, limit.scheduled))

    def _make_limit(self, guard: Guard) -> AdaptiveLimit | None:
        from plumage_engine.vllm.batch_limit import AdaptiveLimit
        from plumage_engine.vllm.compat.limit import complaints

        if reasons := complaints(self._scheduler):
            guard.refuse(reasons)
            return None
        return AdaptiveLimit(self._scheduler)

    def _order_eviction(self, config: PluginEviction) -> None:
        guard = self._guard("eviction")

        def install() -> None:
            from plumage_engine.vllm.eviction import ordered_pool

            ordered_pool.install(self._scheduler, config, guard, self.counters, self._rng(), self._clock)

        attempt(guard, install)

    def follow_host_tier(self, prior: Prior | None) -> None:
        """Configure host memory, where `--kv-transfer-config` names our tier. prior: the pool's word on hotness."""
        if (refused := _refused_tier(self._scheduler)) is not None:
            self.guards["hostTier"] = refused
            return
        guard, promotion = Guard("hostTier", self.counters), Guard("promotion", self.counters)
        if attempt(guard, lambda: _has_our_tier(self._scheduler)):
            self._begin_tier(guard, promotion, prior)
        elif not guard.on:
            self.guards["hostTier"] = guard

    def _begin_tier(self, guard: Guard, promotion: Guard, prior: Prior | None) -> None:
        tier = attempt(guard, lambda: self._install_tier(promotion, prior))
        if tier is None:
            self.guards["hostTier"] = guard
        else:
            self.guards |= {} if self.settings.host_tier.promotion == "Off" else {"promotion": promotion}
            self._tell_eviction(prior)
            self.guards |= {"hostTier": tier.guard, "hotness": tier.prior_guard, **tier.refused}
            if tier.disk is not None:
                self.guards["disk"] = tier.disk.guard

    def _tell_eviction(self, prior: Prior | None) -> None:
        """The pool's word counts for the device's blocks too, where they are evicted by hotness."""
        guard = self.guards.get("eviction")
        if prior is not None and guard is not None and guard.on:
            from plumage_engine.vllm.eviction import ordered_pool

            attempt(guard, lambda: ordered_pool.use_pool_hotness(self._scheduler, prior.prior))

    def _install_tier(self, promotion: Guard, prior: Prior | None) -> SelectiveManager | None:
        from plumage_engine.vllm.offload.install import install

        settings, seed = self.settings.host_tier, self.settings.seed
        return install(self._scheduler, settings, promotion, self.counters, prior=prior, seed=seed)

    def _rng(self) -> random.Random:
        """One for each feature, so that none draws on what another does."""
        return random.Random(self.settings.seed)


def _refused_tier(scheduler: Any) -> Guard | None:
    """Its guard, where our tier is asked for and this vLLM has moved what it is made of."""
    if not _wants_our_tier(scheduler):
        return None
    from plumage_engine.vllm.offload import fallback

    return None if fallback.GUARD.on else fallback.GUARD


def _wants_our_tier(scheduler: Any) -> bool:
    transfer = getattr(getattr(scheduler, "vllm_config", None), "kv_transfer_config", None)
    return (getattr(transfer, "kv_connector_extra_config", None) or {}).get("spec_module_path") == _TIER


def _has_our_tier(scheduler: Any) -> bool:
    """Asked of the manager itself: without our tier nothing of it is imported. AttributeError where it is asked for and
    this vLLM has moved the way to it."""
    if _wants_our_tier(scheduler):
        tiers = scheduler.connector.connector_scheduler.manager
    else:
        tiers = getattr(getattr(getattr(scheduler, "connector", None), "connector_scheduler", None), "manager", None)
    return type(tiers).__module__.startswith("plumage_engine.")


def _tell(listeners: list[_Listener], what: object) -> None:
    for guard, listen in listeners:
        if guard.on:
            try:
                listen(what)
            except Exception as error:
                guard.failed(error)
