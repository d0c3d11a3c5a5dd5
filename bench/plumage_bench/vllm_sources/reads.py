"""What the plugin reads from vLLM's objects. Only `make check-vllm` uses this module: at start these objects do not
exist yet, and importing their classes would cost each process time."""

from __future__ import annotations

from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_events import KVEventBatch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    DirectionalTransferStats,
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
    TransferStats,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import _OffloadEventMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    GroupOffloadConfig,
    RequestGroupState,
    RequestOffloadState,
    SchedulerOffloadConfig,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.lora.request import LoRARequest
from vllm.platforms.interface import Platform
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import CachedRequestData, GrammarOutput, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingKVEventsConfig,
    PrepareStoreOutput,
    ReqContext,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig, OffloadingParallelConfig
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager
from vllm.v1.kv_offload.tiering.base import TransferJob as TierJob
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, JobMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.block_table import BlockTable, MultiGroupBlockTable
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from plumage_engine.vllm.compat.checks import Made, Read

__all__ = ["BATCH", "CONFIG", "HOST_TIER", "MADE", "SCHEDULER", "STEP"]

CONFIG: Read = {
    SchedulerConfig: (
        "scheduler_cls",
        "async_scheduling",
        "max_num_seqs",
        "max_num_batched_tokens",
    ),
    VllmConfig: (
        "additional_config",
        "cache_config",
        "kv_events_config",
        "model_config",
        "parallel_config",
        "scheduler_config",
        "speculative_config",
    ),
    CacheConfig: ("block_size", "enable_prefix_caching", "num_gpu_blocks_override"),
    KVEventsConfig: ("enable_kv_cache_events", "endpoint", "replay_endpoint"),
    ModelConfig: (
        "dtype",
        "enable_sleep_mode",
        "get_head_size",
        "get_num_kv_heads(parallel_config)",
        "get_num_layers(parallel_config)",
        "get_vocab_size",
        "hf_config",
        "hf_text_config",
        "is_multimodal_model",
        "quantization",
        "runner_type",
        "skip_tokenizer_init",
        "tokenizer",
        "try_get_generation_config",
    ),
    ParallelConfig: (
        "distributed_executor_backend",
        "nnodes_within_dp",
        "pipeline_parallel_size",
        "tensor_parallel_size",
        "world_size",
    ),
    Platform: ("device_type", "get_device_name", "is_cuda_alike", "is_xpu"),
    EndpointPlugin: ("attach_router(app)", "init_state(engine_client, state, args)", "name", "required_tasks"),
}
"""Of the command line, read by the routes, the fingerprint and the virtual device."""

SCHEDULER: Read = {
    Request: ("block_hashes", "num_prompt_tokens", "request_id", "sampling_params", "status"),
    SamplingParams: ("extra_args", "ignore_eos", "min_tokens", "seed"),
    Scheduler: ("get_num_unfinished_requests", "max_num_running_reqs"),
    KVCacheManager: ("block_pool", "coordinator", "usage"),
    KVCacheCoordinator: ("single_type_managers",),
    SingleTypeKVCacheManager: ("kv_cache_group_id",),
    EngineCore: ("scheduler",),
    KVEventBatch: ("events",),
}
"""Of requests, and of the engine core's parts."""

STEP: Read = {
    SchedulerOutput: (
        "finished_req_ids",
        "kv_connector_metadata",
        "num_scheduled_tokens",
        "preempted_req_ids",
        "scheduled_cached_reqs",
        "scheduled_new_reqs",
        "scheduled_spec_decode_tokens",
        "total_num_scheduled_tokens",
    ),
    NewRequestData: (
        "block_ids",
        "num_computed_tokens",
        "prefill_token_ids",
        "prompt_len",
        "prompt_token_ids",
        "req_id",
        "sampling_params",
    ),
    CachedRequestData: ("new_block_ids", "num_computed_tokens", "num_output_tokens", "req_ids", "resumed_req_ids"),
    GrammarOutput: ("grammar_bitmask", "structured_output_request_ids"),
    KVConnectorOutput: ("finished_recving", "kv_connector_worker_meta"),
    Executor: ("cache_config", "model_config", "parallel_config", "scheduler_config", "vllm_config"),
    LoRARequest: ("lora_int_id",),
}
"""Of a step's input and output."""

BATCH: Read = {
    GPUModelRunner: ("input_batch", "reorder_batch_threshold"),
    InputBatch: ("block_table", "num_computed_tokens_cpu", "num_prompt_tokens", "req_ids", "swap_states(i1, i2)"),
    MultiGroupBlockTable: ("block_tables",),
    BlockTable: ("block_table", "num_blocks_per_row"),
    CpuGpuBuffer: ("np",),
}
"""Of the running batch."""

HOST_TIER: Read = {
    OffloadingConnector: ("connector_scheduler",),
    SchedulerOffloadConfig: ("blocks_per_chunk", "dcp_world_size", "kv_group_configs", "num_workers"),
    GroupOffloadConfig: (
        "group_idx",
        "is_eagle_group",
        "sliding_window_size_in_chunks",
        "tokens_per_block",
        "tokens_per_chunk",
    ),
    RequestOffloadState: ("group_states",),
    RequestGroupState: ("offload_keys",),
    _OffloadEventMetadata: (
        "block_hashes",
        "block_size",
        "extra_keys",
        "group_idx",
        "lora_id",
        "lora_name",
        "parent_block_hash",
        "token_ids",
    ),
    OffloadingConnectorMetadata: ("jobs_to_flush", "load_jobs", "store_jobs"),
    OffloadingWorkerMetadata: ("completed_jobs", "transfer_stats"),
    TransferStats: ("load", "store"),
    DirectionalTransferStats: ("record",),
    TransferJob: ("dst_spec", "req_id", "src_spec"),
    ChunkStatus: ("is_ready", "ref_cnt"),
    PrepareStoreOutput: ("evicted_keys", "keys_to_store"),
    ReqContext: ("req_id",),
    LookupResult: ("HIT", "MISS"),
    Medium: ("STORAGE",),
    OffloadingEvent: ("removal_expected", "removed"),
    GPULoadStoreSpec: ("block_ids", "block_indices", "group_sizes"),
    CanonicalKVCaches: ("group_data_refs", "tensors"),
    CanonicalKVCacheTensor: ("tensor",),
    CanonicalKVCacheRef: ("tensor_idx",),
    TransferResult: ("job_id",),
    CPUOffloadingSpec: (
        "_manager",
        "_uses_shared_region",
        "_worker",
        "blocks_per_chunk",
        "build_metric_definitions(extra_config)",
        "config",
        "cpu_page_size_per_worker",
        "create_worker(kv_caches)",
        "extra_config",
        "get_manager",
        "get_worker(kv_caches)",
        "kv_bytes_per_chunk",
        "kv_events_config",
        "num_chunks",
        "replicated_layout",
        "tokens_per_block",
    ),
    OffloadingConfig: ("engine_id", "extra_config", "parallel"),
    OffloadingParallelConfig: ("rank",),
    OffloadingKVEventsConfig: ("enable_kv_cache_events", "self_describing_kv_events"),
    SecondaryTierManager: ("block_size_bytes",),
    TierJob: ("chunk_ids", "is_promotion", "job_id", "keys"),
    JobMetadata: ("transfer_job",),
}
"""Of the offloading connector, its manager and its worker, and of the tiers below."""

MADE: Made = {CPUPrimaryTierOffloadingManager: ("num_chunks", "enable_events", "mmap_region")}
"""Read by `MemoryOverDisk`, through Plumage's own class in front of it."""
