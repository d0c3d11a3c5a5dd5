"""vLLM's worker, which each process with a device makes; the entry point hooks its constructor."""

from __future__ import annotations

from vllm.v1.worker.worker_base import WorkerBase

from plumage_engine.vllm.compat.checks import Read

__all__ = ["READ", "WorkerBase"]

READ: Read = {WorkerBase: ("__init__(vllm_config, local_rank, rank)",)}
