"""vLLM's scheduler options: where it chooses the scheduler, which the entry point overrides.

Other options that the plugin reads stand in the checker's `reads`.
"""

from __future__ import annotations

from vllm.config import SchedulerConfig

from plumage_engine.vllm.compat.checks import Surface, missing

__all__ = ["SURFACE", "SchedulerConfig", "problems"]

SURFACE: Surface = {SchedulerConfig: ("get_scheduler_cls",)}


def problems() -> list[str]:
    """What the entry point needs to offer our scheduler and this vLLM does not have."""
    return missing(SURFACE)
