"""The plugin's features around one scheduler of vLLM: what is switched on, and who is told of each step.

Each feature has a guard: what fails in one leaves the others, and vLLM, as they are.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plumage.errors import ConfigurationError
from plumage_engine.vllm import blocks
from plumage_engine.vllm.compat.scheduler import Scheduler, SchedulerOutput
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.feather import Feather
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.heats import Prior
from plumage_engine.vllm.offload.install import install as install_tier
from plumage_engine.vllm.order import RequestOrder
from plumage_engine.vllm.pressure import AdaptiveLimit
from plumage_engine.vllm.settings import PluginEviction, PluginFeather, PluginSettings

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.scheduler import Request

__all__ = ["Features"]

_log = logging.getLogger("vllm.plumage")
_BY_ARRIVAL = PluginFeather(policy="Fcfs", order_batch=False)
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
        self.settings = self.settings.model_copy(update={"feather": config})
        _log.info("plumage: feather: the policy is %s from now on", (config or _BY_ARRIVAL).policy)
        return True

    def step_scheduled(self, output: SchedulerOutput) -> None:
        """vLLM's `schedule()` has returned."""
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
        if reasons := Feather.reasons_against(self._scheduler):
            guard.refuse(reasons)
            return None
        feather = Feather(self._scheduler, config, guard, self.counters, self._rng(), self._clock)
        self._at_schedule.append((guard, feather.scheduled))
        self._at_end.append((guard, feather.ended))
        self._at_free.append((guard, feather.forget))
        return feather

    def _adapt_limit(self) -> None:
        limit, guard = AdaptiveLimit(self._scheduler), self._guard("batchLimit")
        guard.fall_back = limit.lift
        self._at_schedule.append((guard, limit.scheduled))

    def _order_eviction(self, config: PluginEviction) -> None:
        blocks.install(self._scheduler, config, self._guard("eviction"), self.counters, self._rng(), self._clock)

    def follow_host_tier(self, prior: Prior) -> None:
        """Configure host memory, where `--kv-transfer-config` names our tier. prior: the pool's word on hotness."""
        if self._scheduler.connector is not None:
            guard, seed = Guard("promotion", self.counters), self.settings.seed
            tier = install_tier(self._scheduler, self.settings.host_tier, guard, self.counters, prior=prior, seed=seed)
            if tier is not None:
                self.guards |= {"hostTier": tier.guard, "hotness": tier.prior_guard, "promotion": guard}
                if tier.disk is not None:
                    self.guards["disk"] = tier.disk.guard

    def _rng(self) -> random.Random:
        """One for each feature, so that none draws on what another does."""
        return random.Random(self.settings.seed)


def _tell(listeners: list[_Listener], what: object) -> None:
    for guard, listen in listeners:
        if guard.on:
            try:
                listen(what)
            except Exception as error:
                guard.failed(error)
