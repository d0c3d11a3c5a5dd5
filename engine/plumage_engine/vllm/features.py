"""Installs the plugin's features around one vLLM scheduler and notifies them of each step.

Each feature has a guard, so a failure leaves other features and vLLM as they are. A feature imports its names of vLLM
where it is installed; a missing name leaves that feature off.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plumage.errors import ConfigurationError
from plumage.settings.engine_policies import EvictionConfig, FeatherConfig
from plumage.settings.plugin_config import PluginSettings
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.step_times import StepTimes

if TYPE_CHECKING:
    from plumage.batching import StepOutcome
    from plumage_engine.vllm.batch_limit import AdaptiveLimit
    from plumage_engine.vllm.compat.base import Request, Scheduler, SchedulerOutput
    from plumage_engine.vllm.feather.queue_adapter import Feather
    from plumage_engine.vllm.feather.row_order import OutputOrder
    from plumage_engine.vllm.feather.waiting_order import WaitingOrder
    from plumage_engine.vllm.kv_metrics import KvMetrics
    from plumage_engine.vllm.offload.host_tier.chunk_hotness import Prior
    from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager

__all__ = ["Features"]

_log = logging.getLogger("vllm.plumage")
_BY_ARRIVAL = FeatherConfig(policy="Fcfs", order_batch=False)
_TIER_MODULE = "plumage_engine.vllm.offload.spec"
_SEPARATE_WORKERS = ("mp", "ray")
"""vLLM's executors whose workers are other processes."""
_Listener = tuple[Guard, Callable[[Any], None]]


class Features:
    """counters: shared by all features.
    guards: by feature, whether it is on and why not.
    clock: seconds, monotonic.
    """

    def __init__(
        self, scheduler: Scheduler, settings: PluginSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.guards: dict[str, Guard] = {}
        self._at_schedule: list[_Listener] = []
        self._at_end: list[tuple[Guard, Callable[[Any, StepOutcome | None], None]]] = []
        self._at_free: list[_Listener] = []
        self._scheduler = scheduler
        self._clock = clock
        self._times = StepTimes()
        self._feather = self._make_feather(settings.feather)
        if self._feather is not None:
            self._order_batch(settings.feather)
        if settings.batch_limit == "Adaptive":
            self._adapt_limit()
        if settings.eviction is not None:
            self._order_eviction(settings.eviction)
        self._kv_metrics = self._measure_cache()
        on = [name for name, guard in self.guards.items() if guard.on]
        _log.info("plumage: on: %s", ", ".join(on) or "nothing")

    @property
    def order(self) -> WaitingOrder | None:
        """FEATHER's order of requests; None without FEATHER."""
        return None if self._feather is None else self._feather.order

    @property
    def held_back(self) -> int:
        """Waiting requests that FEATHER keeps back on purpose; 0 without it."""
        return 0 if self._feather is None else self._feather.held_back

    def kv_metrics(self) -> dict[str, Any]:
        """The article's metrics so far; {} where they are off."""
        metrics = self._kv_metrics
        return {} if metrics is None or not self.guards["kvMetrics"].on else {"kvMetrics": metrics.report()}

    def change_feather(self, config: FeatherConfig | None) -> bool:
        """Change the batching policy between two steps; None means the order of arrival.

        False: nothing changed. ConfigurationError where FEATHER is off. Whether the batch is sorted is decided at the
        engine's start.
        """
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
        _log.info("plumage: feather: the policy is now %s", (config or _BY_ARRIVAL).policy)
        return True

    def step_scheduled(self, output: SchedulerOutput) -> None:
        """vLLM's `schedule()` has returned. Preemptions are counted whether or not a feature is on."""
        if preempted := getattr(output, "preempted_req_ids", None):
            self.counters.add("preemptions", len(preempted))
        if self._at_end:
            self._times.begun(output, self._clock())
        _notify(self._at_schedule, output)

    def step_ended(self, output: SchedulerOutput) -> None:
        """The device has finished the step; vLLM has not read its output yet."""
        if not self._at_end:
            return
        outcome = self._outcome(output)
        for guard, listen in self._at_end:
            if guard.on:
                try:
                    listen(output, outcome)
                except Exception as error:
                    guard.failed(error)

    def _outcome(self, output: SchedulerOutput) -> StepOutcome | None:
        try:
            return self._times.ended(output, self._clock())
        except Exception as error:
            for guard, _ in self._at_end:
                if guard.on:
                    guard.failed(error)
            return None

    def request_ended(self, request: Request) -> None:
        """A request was finished or aborted, in any state."""
        _notify(self._at_free, request)

    # -- at start ------------------------------------------------------------------------------------------------------

    def _guard(self, feature: str) -> Guard:
        guard = self.guards[feature] = Guard(feature, self.counters)
        return guard

    def _make_feather(self, config: FeatherConfig | None) -> Feather | None:
        if config is None:
            return None
        guard = self._guard("feather")
        feather = attempt(guard, lambda: self._start_feather(config, guard))
        if feather is not None:
            self._at_schedule.append((guard, feather.scheduled))
            self._at_end.append((guard, feather.ended))
            self._at_free.append((guard, feather.forget))
        return feather

    def _start_feather(self, config: FeatherConfig, guard: Guard) -> Feather | None:
        from plumage_engine.vllm.feather.queue_adapter import Feather

        if reasons := Feather.reasons_against(self._scheduler):
            guard.refuse(reasons)
            return None
        return Feather(self._scheduler, config, guard, self.counters, self._rng(), self._clock)

    def _order_batch(self, config: FeatherConfig | None) -> None:
        """Sort batches: of the second model runner by the scheduler's output, of the first in this process. The entry
        point reaches first runners of other processes; their own logs report failures.
        """
        if config is None or not config.order_batch or "batchOrder" in self.guards:
            return
        from plumage_engine.vllm.feather import row_order

        vllm_config = getattr(self._scheduler, "vllm_config", None)
        if getattr(vllm_config, "use_v2_model_runner", False):
            self._order_output(row_order.OutputOrder)
            return
        parallel = getattr(vllm_config, "parallel_config", None)
        if getattr(parallel, "distributed_executor_backend", None) in _SEPARATE_WORKERS:
            _log.info("plumage: batchOrder: the workers are separate processes; their logs report failures")
            return
        row_order.install(self._guard("batchOrder"), vllm_config)

    def _order_output(self, make: Callable[[], OutputOrder]) -> None:
        guard = self._guard("batchOrder")

        def start() -> None:
            from plumage_engine.vllm.compat.second_runner import problems

            if reasons := problems():
                guard.refuse(reasons)
                return
            self._at_schedule.append((guard, make().scheduled))

        attempt(guard, start)

    def _adapt_limit(self) -> None:
        guard = self._guard("batchLimit")
        limit = attempt(guard, lambda: self._make_limit(guard))
        if limit is not None:
            guard.fall_back = limit.restore
            self._at_schedule.append((guard, limit.scheduled))

    def _make_limit(self, guard: Guard) -> AdaptiveLimit | None:
        from plumage_engine.vllm.batch_limit import AdaptiveLimit
        from plumage_engine.vllm.compat.limit import problems

        if reasons := problems(self._scheduler):
            guard.refuse(reasons)
            return None
        return AdaptiveLimit(self._scheduler)

    def _order_eviction(self, config: EvictionConfig) -> None:
        guard = self._guard("eviction")

        def install() -> None:
            from plumage_engine.vllm.eviction import ordered_pool

            ordered_pool.install(self._scheduler, config, guard, self.counters, self._rng(), self._clock)

        attempt(guard, install)

    def _measure_cache(self) -> KvMetrics | None:
        guard = self._guard("kvMetrics")
        metrics = attempt(guard, lambda: self._make_metrics(guard))
        if metrics is not None:
            guard.fall_back = metrics.restore
            self._at_schedule.append((guard, metrics.scheduled))
            self._at_end.append((guard, metrics.ended))
            self._at_free.append((guard, metrics.request_ended))
        return metrics

    def _make_metrics(self, guard: Guard) -> KvMetrics | None:
        from plumage_engine.vllm.compat.kv_metrics import problems
        from plumage_engine.vllm.kv_metrics import KvMetrics

        if reasons := problems(self._scheduler):
            guard.refuse(reasons)
            return None
        metrics = KvMetrics(self._scheduler)
        if not metrics.known_cost:
            _log.info("plumage: kvMetrics: the model's configuration lacks a width, so no FLOPs are counted")
        return metrics

    def install_host_tier(self, prior: Prior | None) -> None:
        """Configure host memory where `--kv-transfer-config` names our tier.

        prior: hotness that the pool measured.
        """
        if (refused := _disabled_tier(self._scheduler)) is not None:
            self.guards["hostTier"] = refused
            return
        guard, promotion = Guard("hostTier", self.counters), Guard("promotion", self.counters)
        if attempt(guard, lambda: _has_our_tier(self._scheduler)):
            self._start_host_tier(guard, promotion, prior)
        elif not guard.on:
            self.guards["hostTier"] = guard

    def _start_host_tier(self, guard: Guard, promotion: Guard, prior: Prior | None) -> None:
        tier = attempt(guard, lambda: self._make_host_tier(promotion, prior))
        if tier is None:
            self.guards["hostTier"] = guard
        else:
            self.guards |= {} if self.settings.host_tier.promotion == "Off" else {"promotion": promotion}
            self._use_pool_hotness(prior)
            self.guards |= {"hostTier": tier.guard, "hotness": tier.prior_guard, **tier.refused}
            if tier.disk is not None:
                self.guards["disk"] = tier.disk.guard

    def _use_pool_hotness(self, prior: Prior | None) -> None:
        """Let the pool's hotness rank the device's blocks too, where they are evicted by hotness."""
        guard = self.guards.get("eviction")
        if prior is not None and guard is not None and guard.on:
            from plumage_engine.vllm.eviction import ordered_pool

            attempt(guard, lambda: ordered_pool.use_pool_hotness(self._scheduler, prior.prior))

    def _make_host_tier(self, promotion: Guard, prior: Prior | None) -> HostTierManager | None:
        from plumage_engine.vllm.offload.install import install

        settings, seed = self.settings.host_tier, self.settings.seed
        return install(self._scheduler, settings, promotion, self.counters, prior=prior, seed=seed)

    def _rng(self) -> random.Random:
        """A generator for each feature, so that no feature changes another's draws."""
        return random.Random(self.settings.seed)


def _disabled_tier(scheduler: Any) -> Guard | None:
    """The tier's guard, where our tier is configured and this vLLM lacks what it needs."""
    if not _wants_our_tier(scheduler):
        return None
    from plumage_engine.vllm.offload import fallback

    return None if fallback.GUARD.on else fallback.GUARD


def _wants_our_tier(scheduler: Any) -> bool:
    transfer = getattr(getattr(scheduler, "vllm_config", None), "kv_transfer_config", None)
    return (getattr(transfer, "kv_connector_extra_config", None) or {}).get("spec_module_path") == _TIER_MODULE


def _has_our_tier(scheduler: Any) -> bool:
    """Whether the manager is ours; without our tier nothing of it is imported.

    AttributeError where our tier is configured and this vLLM keeps its manager elsewhere.
    """
    if _wants_our_tier(scheduler):
        tiers = scheduler.connector.connector_scheduler.manager
    else:
        tiers = getattr(getattr(getattr(scheduler, "connector", None), "connector_scheduler", None), "manager", None)
    return type(tiers).__module__.startswith("plumage_engine.")


def _notify(listeners: list[_Listener], event: object) -> None:
    for guard, listen in listeners:
        if guard.on:
            try:
                listen(event)
            except Exception as error:
                guard.failed(error)
