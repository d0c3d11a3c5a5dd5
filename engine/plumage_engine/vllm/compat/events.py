"""vLLM's KV events, which feed the record, and the engine core, which answers utility calls.

The publisher numbers batches in the order of `publish`, from 0, so counting the calls gives a batch's number.
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
    "problems",
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


def problems(scheduler: Any) -> list[str]:
    """What the record needs and this vLLM does not have."""
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    return missing(SURFACE) + missing_live(LIVE, scheduler) + missing_live(LIVE, pool)


def take_batch(scheduler: Any) -> KVEventBatch | None:
    """Remove and return what the scheduler would publish with its next step, in its order. None: nothing."""
    events = list(scheduler.kv_cache_manager.take_events())
    if scheduler.connector is not None:
        events += scheduler.connector.take_events()
    return KVEventBatch(ts=time.time(), events=events) if events else None


def check_free(config: Any) -> None:
    """ConfigurationError where another process serves one of the event sockets.

    ZMQ would silently take an `ipc://` path from it, and its agent would read our events.
    config: vLLM's KVEventsConfig, or None.
    """
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
    """The process that accepts connections there; None for a stale socket file."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(1.0)
        try:
            one.connect(path)
            pid, _, _ = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return None
    return int(pid)


def publishes(scheduler: Any) -> bool:
    """Whether this engine publishes KV events. If its publisher was moved, the options decide."""
    if hasattr(scheduler, "kv_event_publisher"):
        return isinstance(scheduler.kv_event_publisher, ZmqEventPublisher)
    config = getattr(getattr(scheduler, "vllm_config", None), "kv_events_config", None)
    return bool(getattr(config, "enable_kv_cache_events", False))
