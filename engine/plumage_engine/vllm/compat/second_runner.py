"""vLLM's second model runner (GPUs with Triton), which makes each batch from the scheduler's output."""

from __future__ import annotations

__all__ = ["problems"]


def problems() -> list[str]:
    """Why this vLLM's second runner may not keep the output's order of decoding requests; empty if it does."""
    from vllm.v1.worker.gpu import model_runner

    order = getattr(model_runner, "sort_batch_req_ids", None)
    if order is None:
        return ["this vLLM's second model runner has no sort_batch_req_ids"]
    if list(order({"b": 1, "prefill": 8, "a": 1}, {}, 1)) != ["b", "a", "prefill"]:
        return ["this vLLM's second model runner does not keep the order of the scheduler's output"]
    return []
