"""vLLM's model runner (the first version, which CPUs use, and GPUs without Triton): the place where a backend may
reorder the batch. The second version keeps its requests in another form; with it the batch stays as vLLM has it."""

from __future__ import annotations

from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from plumage_engine.vllm.compat.checks import Surface, missing

__all__ = ["SURFACE", "GPUModelRunner", "InputBatch", "complaints"]

SURFACE: Surface = {GPUModelRunner: ("_may_reorder_batch(scheduler_output)",), InputBatch: ("swap_states(i1, i2)",)}


def complaints() -> list[str]:
    return missing(SURFACE)
