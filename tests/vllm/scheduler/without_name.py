"""An engine of a vLLM that lacks a name, in a process that has imported nothing of the plugin before."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from support.vllm_forking import fork_server

from plumage_bench.vllm.engine import Prompt, plugin_arguments, running
from plumage_bench.vllm.pretend import host_tier_arguments

__all__ = ["report_without"]

_LIMIT_S = 300.0

_VLLM = (
    "vllm.v1.engine.llm_engine",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.worker.cpu_worker",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector",
)


def report_without(model: Path, prompts: Sequence[Prompt], hidden: str, tier: bool) -> dict[str, Any]:
    """What an engine answers and reports without the name. tier: with host memory."""
    with fork_server().Pool(1) as pool:
        found: dict[str, Any] = pool.apply_async(_report, (model, prompts, hidden, tier)).get(_LIMIT_S)
    return found


def _report(model: Path, prompts: Sequence[Prompt], hidden: str, tier: bool) -> dict[str, Any]:
    for whole in _VLLM:  # a module that is imported later could lack the name too
        import_module(whole)
    gc.freeze()
    gc.collect = gc.unfreeze = lambda *_: 0  # type: ignore[assignment]  # see tests/vllm/conftest.py
    module, _, name = hidden.rpartition(".")
    delattr(import_module(module), name)
    arguments = {**plugin_arguments({"feather": {"orderBatch": True}}), **(host_tier_arguments(64) if tier else {})}
    with running(model, dtype="float32", **arguments) as engine:
        answers = engine.serve(prompts).answers
        guards = engine.scheduler.plumage.guards
        return {
            "answers": {name: answer.tokens for name, answer in answers.items()},
            "off": {name: guard.reason for name, guard in guards.items() if not guard.on},
            "held": engine.pool.num_gpu_blocks - 1 - engine.pool.get_num_free_blocks(),
            "on": [name for name, guard in guards.items() if guard.on],
        }
