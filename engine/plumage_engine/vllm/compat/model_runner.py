"""vLLM's first model runner, used by CPUs and by GPUs without Triton, where a backend may reorder the batch.

The second version has its own module, `second_runner`.
"""

from __future__ import annotations

from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from plumage_engine.vllm.compat.checks import Surface, missing

__all__ = ["SURFACE", "GPUModelRunner", "InputBatch", "problems"]

SURFACE: Surface = {GPUModelRunner: ("_may_reorder_batch(scheduler_output)",), InputBatch: ("swap_states(i1, i2)",)}


def problems() -> list[str]:
    return missing(SURFACE)
