"""KV events in the form vLLM 0.32 publishes them, byte for byte.

A message is [topic, sequence number (8 bytes, big-endian), msgpack of [timestamp, [events], data-parallel rank]]; an
event is a map with a "type", fields at their default left out. Block hashes are 64-bit integers.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["END_OF_REPLAY", "AllBlocksCleared", "BlockRemoved", "BlockStored", "EventBatch", "encode", "sequence"]

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)

ExtraKeys = tuple[str, ...] | None


class _Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """vLLM tags its events with the class name under "type"."""


class BlockStored(_Event):
    """token_ids: of all the blocks, in order. extra_keys: per block, untagged: the adapter's name, and in the first
    block of a prompt its cache salt."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[ExtraKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(_Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(_Event):
    pass


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


_ENCODER = msgspec.msgpack.Encoder()


def encode(batch: EventBatch) -> bytes:
    """The third frame."""
    return _ENCODER.encode(batch)


def sequence(number: int) -> bytes:
    """The second frame."""
    return number.to_bytes(8, "big")
