"""The classes of vLLM from which any spec for its OffloadingConnector derives.

An engine that names `HostTierSpec` can't start without them.
"""

from __future__ import annotations

from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    PrepareStoreOutput,
    RequestOffloadingContext,
)

from plumage_engine.vllm.compat.checks import Read

__all__ = [
    "READ",
    "LoadStoreSpec",
    "LookupResult",
    "OffloadingManager",
    "OffloadingSpec",
    "OffloadingWorker",
    "PrepareStoreOutput",
    "RequestOffloadingContext",
    "stock_spec",
]

READ: Read = {
    LookupResult: ("MISS",),
    OffloadingManager: (
        "lookup(key, req_context)",
        "prepare_load(keys, req_context)",
        "prepare_store(keys, req_context)",
        "on_new_request(req_context)",
    ),
    OffloadingSpec: ("get_manager", "get_worker(kv_caches)"),
    OffloadingWorker: (
        "submit_store(job_id, src_spec, dst_spec)",
        "submit_load(job_id, src_spec, dst_spec)",
        "get_finished",
        "wait(job_ids)",
    ),
    PrepareStoreOutput: ("keys_to_store", "store_spec", "evicted_keys"),
}


def stock_spec() -> type[OffloadingSpec] | None:
    """vLLM's own host memory; None on a platform where it does not run. ImportError where it was moved."""
    from vllm.platforms import current_platform
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    return CPUOffloadingSpec if current_platform.is_cuda_alike() or current_platform.is_xpu() else None
