"""The classes of vLLM from which the plugin's scheduler derives: the only names an engine with the plugin must have."""

from __future__ import annotations

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

__all__ = ["AsyncScheduler", "Request", "Scheduler", "SchedulerOutput"]
