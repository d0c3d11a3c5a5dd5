"""Puts the parts of the disk tier together: the memory that is shared, the file, the threads, the two managers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from plumage_engine.vllm.compat.kv_tiering import CPUOffloadingWorker, DualQueueThreadPool
from plumage_engine.vllm.offload.disk import DiskTier
from plumage_engine.vllm.offload.disk_io import DiskIo
from plumage_engine.vllm.offload.disk_options import DISK_BYTES, DiskOptions
from plumage_engine.vllm.offload.region import WorkersRegion, map_region
from plumage_engine.vllm.offload.slab import Slab
from plumage_engine.vllm.offload.tiered import MemoryOverDisk, TieredManager

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.kv_offload import CanonicalKVCaches
    from plumage_engine.vllm.offload.host import SelectiveSpec

__all__ = ["PATIENCE", "make_tiers", "make_worker", "workers_region"]

PATIENCE: Final = 10.0
"""Seconds that one chunk may take; a disk that needs longer hangs."""
_READERS, _WRITERS = 4, 2


def make_tiers(
    spec: SelectiveSpec, disk: DiskOptions, tokens: int, clock: Callable[[], float] = time.monotonic
) -> TieredManager:
    """For the scheduler. tokens: in a chunk. A disk that can't be used is told when it is to be switched on."""
    events = spec.kv_events_config.enable_kv_cache_events
    region = map_region(spec.config.engine_id, spec.num_chunks, spec.kv_bytes_per_chunk, spec.cpu_page_size_per_worker)
    memory = MemoryOverDisk(spec.num_chunks, tokens, spec.cpu_page_size_per_worker, region, events=events)
    view = memory.get_kv_memoryview()
    slots, io, problem = disk.size // spec.kv_bytes_per_chunk, None, ""
    try:
        problem = _no_room(disk, slots, spec.kv_bytes_per_chunk)
        if not problem:
            slab = Slab(disk.folder, spec.kv_bytes_per_chunk)
            pool = DualQueueThreadPool(_READERS, _WRITERS, thread_name_prefix="plumage-disk")
            io = DiskIo(slab, np.asarray(view), pool, clock, PATIENCE)
    except OSError as error:
        problem = f"nothing can be written to {disk.folder}: {error.strerror or error}"
    return TieredManager(
        memory, DiskTier(spec, view, io, slots if io is not None else 0, memory.hotness, events=events, problem=problem)
    )


def _no_room(disk: DiskOptions, slots: int, chunk: int) -> str:
    if not slots:
        return f"{DISK_BYTES} is {disk.size}, less than one chunk, which has {chunk} bytes"
    disk.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(disk.folder).free
    return f"{DISK_BYTES} is {disk.size}, but {disk.folder} has {free} bytes free" if free < disk.size else ""


def workers_region(spec: SelectiveSpec) -> WorkersRegion:
    """For a worker: its part of each chunk of host memory."""
    rank = 0 if spec.replicated_layout else spec.config.parallel.rank
    return WorkersRegion(
        spec.config.engine_id, spec.num_chunks, rank, spec.kv_bytes_per_chunk, spec.cpu_page_size_per_worker
    )


def make_worker(spec: SelectiveSpec, caches: CanonicalKVCaches) -> Any:
    """vLLM's worker on a GPU, over that part."""
    region = workers_region(spec)
    try:
        return CPUOffloadingWorker(caches, spec.blocks_per_chunk, spec.num_chunks, region)
    except Exception:
        region.cleanup()
        raise
