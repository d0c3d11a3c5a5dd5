"""The parts of vLLM's executor that the virtual device replaces, and the inputs of a step and of copies to the host.

vLLM 0.32 asks each executor for its supported layouts of the KV cache and sets one. Both have no effect without
tensors.
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.output import CachedRequestData, GrammarOutput, NewRequestData, SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput, ModelRunnerOutput

from plumage_engine.vllm.compat.checks import Surface, missing

__all__ = [
    "EMPTY_MODEL_RUNNER_OUTPUT",
    "SURFACE",
    "CachedRequestData",
    "Executor",
    "FullAttentionSpec",
    "GrammarOutput",
    "KVCacheSpec",
    "KVConnectorOutput",
    "LoRARequest",
    "ModelRunnerOutput",
    "NewRequestData",
    "OffloadingConnectorMetadata",
    "OffloadingWorkerMetadata",
    "SchedulerOutput",
    "TransferJob",
    "VllmConfig",
    "complaints",
]

SURFACE: Surface = {
    Executor: (
        "_init_executor",
        "add_lora(lora_request)",
        "collective_rpc(method, timeout, args, kwargs, non_block)",
        "compile_or_warm_up_model",
        "determine_available_memory",
        "execute_model(scheduler_output, non_block)",
        "get_kv_cache_specs",
        "get_kv_connector_handshake_metadata",
        "get_supported_kv_cache_layouts",
        "initialize_from_config(kv_cache_configs)",
        "sample_tokens(grammar_output, non_block)",
        "set_kv_cache_layout(layout_name)",
        "sleep(level)",
        "supports_async_scheduling",
    ),
    SchedulerOutput: (
        "__init__(scheduled_new_reqs, scheduled_cached_reqs, num_scheduled_tokens, finished_req_ids)",
        "__init__(total_num_scheduled_tokens, kv_connector_metadata, preempted_req_ids)",
    ),
    NewRequestData: (
        "__init__(req_id, prompt_token_ids, block_ids, num_computed_tokens, prefill_token_ids, sampling_params)",
        "prompt_len",
    ),
    CachedRequestData: ("__init__(req_ids, resumed_req_ids, new_block_ids, num_computed_tokens, num_output_tokens)",),
    GrammarOutput: ("__init__(structured_output_request_ids, grammar_bitmask)",),
    ModelRunnerOutput: (
        "__init__(req_ids, req_id_to_index, sampled_token_ids, kv_connector_output)",
        "with_kv_conn_output_only(kv_connector_output)",
    ),
    KVConnectorOutput: ("__init__(finished_recving, kv_connector_worker_meta)",),
    FullAttentionSpec: ("__init__(block_size, num_kv_heads, head_size, dtype)", "page_size_bytes"),
    OffloadingConnectorMetadata: ("__init__(load_jobs, store_jobs, jobs_to_flush)",),
    OffloadingWorkerMetadata: ("__init__(completed_jobs, transfer_stats)", "mark_completed(job_id)"),
    TransferJob: ("__init__(req_id, src_spec, dst_spec)",),
}


def complaints() -> list[str]:
    """The names that this vLLM lacks. There is no fallback, so the device does not start."""
    return missing(SURFACE)
