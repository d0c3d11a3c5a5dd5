"""The entry point that vLLM calls in each of its processes (group `vllm.general_plugins`).

It does nothing unless PLUMAGE_VLLM is set. Then vLLM takes our scheduler where the command line names none, and its
workers sort their batches. The way by flag is `--scheduler-cls plumage_engine.vllm.scheduler.make_scheduler`, and needs
no entry point; it reaches the batch of a worker in the engine core's own process only.

vLLM calls it without a safety net: where vLLM has moved what is patched here, the log says so and vLLM goes on
without.
"""

from __future__ import annotations

import os
from typing import Any

from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard, attempt
from plumage_engine.vllm.settings import ENVIRONMENT, read_settings

__all__ = ["register"]


def register() -> None:
    """Idempotent, as vLLM asks. ConfigurationError stops vLLM before it loads a model."""
    if not os.environ.get(ENVIRONMENT, "").strip():
        return
    settings = read_settings(None, os.environ)
    attempt(Guard("scheduler", Counters()), _offer_scheduler)
    if settings is not None and settings.feather is not None and settings.feather.order_batch:
        attempt(Guard("batchOrder", Counters()), _order_batches)


def _offer_scheduler() -> None:
    from vllm.config import SchedulerConfig

    own = SchedulerConfig.get_scheduler_cls
    if getattr(own, "plumage", False):
        return

    def get_scheduler_cls(config: Any) -> Any:
        if getattr(config, "scheduler_cls", None) is not None:
            return own(config)
        return attempt(Guard("scheduler", Counters()), _ours) or own(config)

    get_scheduler_cls.plumage = True  # type: ignore[attr-defined]
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls


def _ours() -> Any:
    from plumage_engine.vllm.scheduler import make_scheduler

    return make_scheduler


def _order_batches() -> None:
    """Reach the runner once a worker is made: importing it costs seconds that the other processes need not spend."""
    from vllm.v1.worker.worker_base import WorkerBase

    own = WorkerBase.__init__
    if getattr(own, "plumage", False):
        return

    def make_worker(worker: Any, *args: Any, **kwargs: Any) -> None:
        from plumage_engine.vllm import batch_order

        batch_order.install()
        own(worker, *args, **kwargs)

    make_worker.plumage = True  # type: ignore[attr-defined]
    WorkerBase.__init__ = make_worker
