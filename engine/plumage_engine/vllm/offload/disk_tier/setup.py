"""Makes the parts of the disk tier: the shared memory, the file, the threads and the two managers."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np

from plumage_engine.vllm.compat.kv_offload import CanonicalKVCaches, CPUOffloadingSpec
from plumage_engine.vllm.compat.kv_tiering import CPUOffloadingWorker, DualQueueThreadPool, SharedOffloadRegion
from plumage_engine.vllm.offload.disk_tier.disk_tier import DiskTier
from plumage_engine.vllm.offload.disk_tier.options import DISK_BYTES, DiskOptions
from plumage_engine.vllm.offload.disk_tier.slot_file import SlotFile
from plumage_engine.vllm.offload.disk_tier.tiered_manager import MemoryOverDisk, TieredManager
from plumage_engine.vllm.offload.disk_tier.transfers import DiskTransfers

__all__ = ["CHUNK_TIMEOUT", "make_tiers", "make_worker", "workers_region"]

CHUNK_TIMEOUT: Final = 10.0
"""Timeout of one chunk, in seconds; a disk that needs longer hangs."""
_READERS, _WRITERS = 4, 2


def make_tiers(
    spec: CPUOffloadingSpec, disk: DiskOptions, tokens: int, clock: Callable[[], float] = time.monotonic
) -> TieredManager:
    """The managers, for the scheduler. A disk that can't be used is reported when it is switched on.

    tokens: in a chunk.
    """
    events = spec.kv_events_config.enable_kv_cache_events
    region = map_region(spec.config.engine_id, spec.num_chunks, spec.kv_bytes_per_chunk, spec.cpu_page_size_per_worker)
    memory = MemoryOverDisk(spec.num_chunks, tokens, spec.cpu_page_size_per_worker, region, events=events)
    view = memory.get_kv_memoryview()
    slots, io, problem = disk.size // spec.kv_bytes_per_chunk, None, ""
    try:
        problem = _no_room(disk, slots, spec.kv_bytes_per_chunk)
        if not problem:
            file = SlotFile(disk.folder, spec.kv_bytes_per_chunk)
            pool = DualQueueThreadPool(_READERS, _WRITERS, thread_name_prefix="plumage-disk")
            io = DiskTransfers(file, np.asarray(view), pool, clock, CHUNK_TIMEOUT)
    except OSError as error:
        problem = f"nothing can be written to {disk.folder}: {error.strerror or error}"
    return TieredManager(
        memory,
        DiskTier(
            spec,
            view,
            io,
            slots if io is not None else 0,
            memory.writes,
            memory.hotness_of,
            events=events,
            problem=problem,
        ),
    )


def _no_room(disk: DiskOptions, slots: int, chunk: int) -> str:
    if not slots:
        return f"{DISK_BYTES} is {disk.size}, less than one chunk, which has {chunk} bytes"
    disk.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(disk.folder).free
    return f"{DISK_BYTES} is {disk.size}, but {disk.folder} has {free} bytes free" if free < disk.size else ""


def workers_region(spec: CPUOffloadingSpec) -> WorkersRegion:
    """A worker's part of each chunk of host memory."""
    rank = 0 if spec.replicated_layout else spec.config.parallel.rank
    return WorkersRegion(
        spec.config.engine_id, spec.num_chunks, rank, spec.kv_bytes_per_chunk, spec.cpu_page_size_per_worker
    )


def make_worker(spec: CPUOffloadingSpec, caches: CanonicalKVCaches) -> Any:
    """vLLM's worker on a GPU, over that part."""
    region = workers_region(spec)
    try:
        return CPUOffloadingWorker(caches, spec.blocks_per_chunk, spec.num_chunks, region)
    except Exception:
        region.cleanup()
        raise


class WorkersRegion(SharedOffloadRegion):
    """A worker's view of the shared memory. vLLM's own would fail at its end, because the scheduler has unlinked the
    name.
    """

    _creator: bool

    def cleanup(self) -> None:
        if self._creator:
            self._creator = False
            with suppress(FileNotFoundError):
                os.unlink(self.mmap_path)
        super().cleanup()


def map_region(engine: str, chunks: int, chunk_bytes: int, page: int) -> SharedOffloadRegion:
    """The scheduler's view of the memory that the workers map too: the disk is written from it and read into it.

    Workers have mapped theirs when the scheduler is made, so the name is unlinked and no file remains, however the
    engine ends. Without workers yet, the name stays for them.
    """
    region = SharedOffloadRegion(engine, chunks, None, chunk_bytes, page)
    if not region._creator:
        with suppress(FileNotFoundError):
            os.unlink(region.mmap_path)
    return region
