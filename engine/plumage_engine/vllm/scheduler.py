"""vLLM's scheduler with the plugin's features: `--scheduler-cls plumage_engine.vllm.scheduler.make_scheduler`.

`--scheduler-cls` may name a factory. It derives from the asynchronous or the plain scheduler, as vLLM would choose.
`schedule()` stays vLLM's own. Only vLLM's scheduler classes must be importable; each feature imports its own names
where it is installed (`features`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from plumage.settings.plugin_config import PluginSettings
from plumage_engine.vllm.compat.base import AsyncScheduler, Request, Scheduler, SchedulerOutput
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.features import Features
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.settings import check_keys, read_settings

if TYPE_CHECKING:
    from plumage_engine.vllm.routes.engine_core import EngineRoutes

__all__ = ["PlumageAsyncScheduler", "PlumageScheduler", "make_scheduler"]


class _Hooks(Scheduler):
    """Reports steps and ended requests to the features.

    plumage: the features.
    routes: the engine core's half of the routes; None where this vLLM has no place for it.
    """

    def __init__(self, *args: Any, plumage: PluginSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plumage = Features(self, plumage)
        self.routes = _make_routes(self, self.plumage)
        self.plumage.install_host_tier(None if self.routes is None else self.routes.hotness)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        self.plumage.step_scheduled(output)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        self.plumage.step_ended(scheduler_output)
        if self.routes is not None:
            self.routes.stepped()
        return super().update_from_output(scheduler_output, model_runner_output)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Also called on the way to sleep. The reset is published at once, to the record as well."""
        done = bool(super().reset_prefix_cache(*args, **kwargs))
        if self.routes is not None:
            self.routes.publish_events()
        return done

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.plumage.request_ended(request)
        return super()._free_request(request, *args, **kwargs)


class PlumageScheduler(_Hooks):
    """For synchronous scheduling."""


class PlumageAsyncScheduler(_Hooks, AsyncScheduler):
    """For asynchronous scheduling. The hooks precede vLLM's class in the method resolution order."""


def make_scheduler(**kwargs: Any) -> Scheduler:
    """vLLM calls it with its scheduler's own arguments. ConfigurationError stops vLLM and names the mistake."""
    config = kwargs["vllm_config"]
    given = getattr(config, "additional_config", None)
    check_keys(given)
    settings = read_settings(given, os.environ) or PluginSettings()
    attempt(Guard("record", Counters()), lambda: _check_sockets(config.kv_events_config))
    made = PlumageAsyncScheduler if config.scheduler_config.async_scheduling else PlumageScheduler
    return made(plumage=settings, **kwargs)


def _make_routes(scheduler: Scheduler, features: Features) -> EngineRoutes | None:
    """The engine core's half of the routes; None, with the guard `routes` off, where this vLLM has no place for it."""
    guard = Guard("routes", features.counters)

    def make() -> EngineRoutes:
        from plumage_engine.vllm.routes.engine_core import EngineRoutes

        return EngineRoutes(scheduler, features)

    routes = attempt(guard, make)
    if routes is None:
        features.guards["routes"] = guard
    return routes


def _check_sockets(config: Any) -> None:
    from plumage_engine.vllm.compat.events import check_free

    check_free(config)
