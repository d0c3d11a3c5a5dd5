"""vLLM's KV events and the engine core that answers utility calls: what the fleet's surface is fed by and reached by.

The publisher numbers batches in the order of `publish`, from 0 on, so who counts the calls knows a batch's number.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch, ZmqEventPublisher
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore

from plumage.errors import ConfigurationError
from plumage_engine.vllm.compat.checks import Live, Surface, missing, missing_live

__all__ = [
    "LIVE",
    "SURFACE",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "EngineCore",
    "check_free",
    "complaints",
    "publishes",
    "take_batch",
]

SURFACE: Surface = {
    BlockStored: (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
    ),
    BlockRemoved: ("block_hashes", "medium", "group_idx"),
    ZmqEventPublisher: ("publish(events)",),
    BlockPool: ("emit_cached_block_events", "take_events"),
    KVCacheManager: ("take_events",),
    KVConnectorBase_V1: ("take_events",),
    Scheduler: ("reset_prefix_cache",),
}
LIVE: Live = {
    Scheduler: (
        "kv_event_publisher",
        "kv_cache_manager",
        "connector",
        "block_size",
        "max_model_len",
        "running",
        "vllm_config",
    ),
    BlockPool: ("kv_event_queue", "cached_block_hash_to_block", "num_gpu_blocks"),
}


def complaints(scheduler: Any) -> list[str]:
    """What the record needs and this vLLM does not have."""
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    return missing(SURFACE) + missing_live(LIVE, scheduler) + missing_live(LIVE, pool)


def take_batch(scheduler: Any) -> KVEventBatch | None:
    """What the scheduler would publish with its next step, in its order, taken away from it. None: nothing."""
    told = list(scheduler.kv_cache_manager.take_events())
    if scheduler.connector is not None:
        told += scheduler.connector.take_events()
    return KVEventBatch(ts=time.time(), events=told) if told else None


def check_free(config: Any) -> None:
    """ConfigurationError where another process serves one of the event sockets. ZMQ would take an `ipc://` path away
    from it without a word, and its agent would follow our cache for its own. config: vLLM's KVEventsConfig, or None."""
    if config is None or not config.enable_kv_cache_events:
        return
    for name in ("endpoint", "replay_endpoint"):
        endpoint = getattr(config, name, None) or ""
        scheme, _, path = endpoint.partition("://")
        if scheme == "ipc" and (pid := _serving(path)) is not None:
            raise ConfigurationError(
                f"--kv-events-config, {name}: process {pid} serves {endpoint}; end it, or give this engine a path of "
                "its own. An engine core outlives an API server that was killed"
            )


def _serving(path: str) -> int | None:
    """Who accepts connections there; a file that was left behind accepts none."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(1.0)
        try:
            one.connect(path)
            pid, _, _ = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return None
    return int(pid)


def publishes(scheduler: Any) -> bool:
    """Whether this engine sends KV events to anybody. Where its publisher has moved the options tell, so that
    `complaints` is asked."""
    if hasattr(scheduler, "kv_event_publisher"):
        return isinstance(scheduler.kv_event_publisher, ZmqEventPublisher)
    config = getattr(getattr(scheduler, "vllm_config", None), "kv_events_config", None)
    return bool(getattr(config, "enable_kv_cache_events", False))
