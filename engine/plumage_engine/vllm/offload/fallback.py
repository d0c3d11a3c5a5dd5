"""Host memory that takes nothing and has nothing: what an engine goes on with where ours can't be made."""

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
"""Of this process: off where this vLLM lacks what the tier is made of."""


class IdleManager(OffloadingManager):
    """Misses, and takes in nothing."""

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        return LookupResult.MISS

    def prepare_load(self, keys: Any, req_context: Any) -> LoadStoreSpec:
        raise KeyError("nothing is in host memory")

    def prepare_store(self, keys: Any, req_context: Any) -> PrepareStoreOutput:
        """None is worth it. (vLLM logs an answer of None for each request.)"""
        return PrepareStoreOutput(keys_to_store=[], store_spec=LoadStoreSpec(), evicted_keys=[])

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()


class _IdleWorker(OffloadingWorker):
    """Is given no job."""

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return False

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        return False

    def get_finished(self) -> list[Any]:
        return []

    def wait(self, job_ids: set[int]) -> None:
        return


class IdleSpec(OffloadingSpec):
    """Has vLLM's connector, and what it asks, but no memory."""

    def get_manager(self) -> OffloadingManager:
        return IdleManager()

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        return _IdleWorker()
