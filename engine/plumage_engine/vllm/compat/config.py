"""vLLM's options of its scheduler: where it asks which one to make, which the entry point answers. What else is read of
its options stands in the checker's `reads`."""

from __future__ import annotations

from vllm.config import SchedulerConfig

from plumage_engine.vllm.compat.checks import Surface, missing

__all__ = ["SURFACE", "SchedulerConfig", "complaints"]

SURFACE: Surface = {SchedulerConfig: ("get_scheduler_cls",)}


def complaints() -> list[str]:
    """What the entry point needs to offer our scheduler and this vLLM does not have."""
    return missing(SURFACE)
