"""vLLM's second model runner (GPUs with Triton), which makes each batch from the scheduler's output."""

from __future__ import annotations

__all__ = ["problems"]


def problems() -> list[str]:
    """Why this vLLM's second runner may not keep the output's order of decoding requests; empty if it does.
    ImportError if its sort is gone."""
    from vllm.v1.worker.gpu.model_runner import sort_batch_req_ids

    if list(sort_batch_req_ids({"b": 1, "prefill": 8, "a": 1}, {}, 1)) != ["b", "a", "prefill"]:
        return ["this vLLM's second model runner does not keep the order of the scheduler's output"]
    return []
