"""vLLM's KV events and the engine core that answers utility calls: what the fleet's surface is fed by and reached by.

The publisher numbers batches in the order of `publish`, from 0 on, so who counts the calls knows a batch's number.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventPublisher, ZmqEventPublisher
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.engine.core import EngineCore

from plumage_engine.vllm.compat.checks import Surface, missing

__all__ = ["SURFACE", "AllBlocksCleared", "BlockRemoved", "BlockStored", "EngineCore", "complaints", "publishes"]

SURFACE: Surface = {
    EventPublisher: ("publish(events)",),
    ZmqEventPublisher: ("publish(events)",),
    BlockPool: ("emit_cached_block_events", "take_events"),
}
_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "medium", "lora_name", "extra_keys")
_REMOVED = ("block_hashes", "medium", "group_idx")


def complaints(scheduler: Any) -> list[str]:
    """What the record needs and this vLLM does not have."""
    gone = missing(SURFACE)
    for event, fields in ((BlockStored, (*_STORED, "group_idx")), (BlockRemoved, _REMOVED)):
        gone += [f"{event.__name__} has no {name}" for name in fields if name not in event.__struct_fields__]
    for name in ("kv_event_publisher", "kv_cache_manager", "block_size"):
        if not hasattr(scheduler, name):
            gone.append(f"the scheduler has no attribute {name}")
    return gone


def publishes(scheduler: Any) -> bool:
    """Whether this engine sends KV events to anybody."""
    return isinstance(getattr(scheduler, "kv_event_publisher", None), ZmqEventPublisher)
