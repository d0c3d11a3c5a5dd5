"""Host memory that stores nothing: the engine runs with it where neither ours nor vLLM's own can be made."""

from __future__ import annotations

from typing import Any

from plumage_engine.vllm.compat.offload_base import (
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    PrepareStoreOutput,
    RequestOffloadingContext,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard

__all__ = ["GUARD", "IdleManager", "IdleSpec"]

GUARD = Guard("hostTier", Counters())
"""Of this process: off where this vLLM lacks what the tier needs."""


class IdleManager(OffloadingManager):
    """Every look-up is a miss, and nothing is stored."""

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        return LookupResult.MISS

    def prepare_load(self, keys: Any, req_context: Any) -> LoadStoreSpec:
        raise KeyError("nothing is in host memory")

    def prepare_store(self, keys: Any, req_context: Any) -> PrepareStoreOutput:
        """Store no chunk. (vLLM logs an answer of None for each request.)"""
        return PrepareStoreOutput(keys_to_store=[], store_spec=LoadStoreSpec(), evicted_keys=[])

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()


class _IdleWorker(OffloadingWorker):
    """Receives no job."""

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return False

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        return False

    def get_finished(self) -> list[Any]:
        return []

    def wait(self, job_ids: set[int]) -> None:
        return


class IdleSpec(OffloadingSpec):
    """Serves vLLM's connector without memory."""

    def get_manager(self) -> OffloadingManager:
        return IdleManager()

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        return _IdleWorker()
