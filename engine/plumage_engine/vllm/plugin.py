"""The entry point that vLLM calls in each of its processes (group `vllm.general_plugins`).

It does nothing unless PLUMAGE_VLLM is set. Then vLLM takes our scheduler where the command line names none, and its
workers sort their batches. `--scheduler-cls plumage_engine.vllm.scheduler.make_scheduler` works without the entry
point, but sorts batches only where the worker runs in the engine core's process.

vLLM does not catch exceptions here. Where it lacks a name that is patched, the log says so and vLLM runs without our
scheduler. An engine core without our scheduler cannot report that, so the API server does (`absent`).
"""

from __future__ import annotations

import os
from typing import Any

from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.settings import ENVIRONMENT, read_settings

__all__ = ["GUARD", "SCHEDULER", "absent", "register"]

SCHEDULER = "plumage_engine.vllm.scheduler.make_scheduler"
"""The value of `--scheduler-cls`."""

GUARD = Guard("scheduler", Counters())
"""Of this process: off where our scheduler can't be offered to vLLM or can't be imported."""


def register() -> None:
    """Register the plugin. Idempotent, as vLLM requires. ConfigurationError stops vLLM before it loads a model."""
    if not _wanted():
        return
    settings = read_settings(None, os.environ)
    attempt(GUARD, _offer_scheduler)
    if settings is not None and settings.feather is not None and settings.feather.order_batch:
        attempt(Guard("batchOrder", Counters()), _order_batches)


def absent(config: Any) -> Guard:
    """The guard of a missing feature that the routes need.

    This process started with the same settings, so it derives the reason itself.
    config: vLLM's SchedulerConfig.
    """
    named = getattr(config, "scheduler_cls", None)
    if named not in (None, SCHEDULER):
        return _refused("scheduler", f"--scheduler-cls names another scheduler, {named}")
    if named is None and not _wanted():
        return _refused("scheduler", f"nothing switches it on: set {ENVIRONMENT}, or --scheduler-cls {SCHEDULER}")
    if not GUARD.on or attempt(GUARD, _ours) is None:
        return GUARD
    return _refused("routes", "the engine core's log has the reason")


def _refused(feature: str, reason: str) -> Guard:
    guard = Guard(feature, Counters())
    guard.refuse([reason])
    return guard


def _wanted() -> bool:
    return bool(os.environ.get(ENVIRONMENT, "").strip())


def _offer_scheduler() -> None:
    from plumage_engine.vllm.compat.config import SchedulerConfig, problems

    if reasons := problems():
        GUARD.refuse(reasons)
        return
    own = SchedulerConfig.get_scheduler_cls
    if getattr(own, "plumage", False):
        return

    def get_scheduler_cls(config: Any) -> Any:
        if getattr(config, "scheduler_cls", None) is not None:
            return own(config)
        return attempt(GUARD, _ours) or own(config)

    get_scheduler_cls.plumage = True  # type: ignore[attr-defined]
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls


def _ours() -> Any:
    from plumage_engine.vllm.scheduler import make_scheduler

    return make_scheduler


def _order_batches() -> None:
    """Hook the workers' constructor, because importing the model runner costs other processes seconds."""
    from plumage_engine.vllm.compat.worker import WorkerBase

    own = WorkerBase.__init__
    if getattr(own, "plumage", False):
        return

    def make_worker(worker: Any, *args: Any, **kwargs: Any) -> None:
        from plumage_engine.vllm.feather import row_order

        row_order.install()
        own(worker, *args, **kwargs)

    make_worker.plumage = True  # type: ignore[attr-defined]
    WorkerBase.__init__ = make_worker
