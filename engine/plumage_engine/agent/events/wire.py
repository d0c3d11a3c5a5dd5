"""vLLM's KV events as they come over the wire, and the engine snapshot, decoded into typed structs.

Contract: `decode_batch(payload)` takes any form that vLLM has used: the batch and each event are maps or arrays, block
hashes are integers or bytes. Event types that are not known are skipped (a newer engine may add some); a payload that
is no batch raises `WireError`. The usual form of today's vLLM (array batch, map events) is decoded by msgspec in C
straight into structs: this is the agent's hot path.

Source: vllm/distributed/kv_events.py, 0.22 to 0.33.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from plumage.errors import PlumageError

__all__ = [
    "BlockHash",
    "Cleared",
    "Event",
    "EventBatch",
    "Removed",
    "Row",
    "Snapshot",
    "Stored",
    "TokenId",
    "WireError",
    "decode_batch",
    "decode_snapshot",
]

BlockHash = int | bytes
TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]
Size = Annotated[int, Meta(ge=0)]


class WireError(PlumageError):
    """A message from the engine that can't be read."""


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """Blocks of one chain became cached below `parent_block_hash` (None: they start a prompt)."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None = None
    token_ids: list[TokenId] = field(default_factory=list)
    block_size: Size = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    """One copy of each of these blocks left `medium`."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The prefix cache was reset."""


Event = Stored | Removed | Cleared


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """What one engine step did to the cache. `ts` is the engine's wall clock, it tells a restart from a repetition."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class Row(msgspec.Struct, array_like=True, gc=False):
    """One cached block of a snapshot; parents come before their children."""

    block_hash: BlockHash
    parent: BlockHash | None
    token_ids: list[TokenId]
    medium: str | None = None
    group_idx: int | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    copies: Size = 1


class Snapshot(msgspec.Struct, gc=False):
    """Everything an engine holds, valid at `seq`: events with a larger sequence number apply after it."""

    v: int
    seq: int
    block_size: Size
    blocks: list[Row]


_batches = msgspec.msgpack.Decoder(EventBatch)
_snapshots = msgspec.msgpack.Decoder(Snapshot)
_STRUCTS: dict[str, type[Event]] = {"BlockStored": Stored, "BlockRemoved": Removed, "AllBlocksCleared": Cleared}


def decode_batch(payload: bytes) -> EventBatch:
    """WireError when `payload` is no event batch in any known form."""
    try:
        return _batches.decode(payload)
    except msgspec.DecodeError:
        return _decode_any(payload)


def decode_snapshot(payload: bytes) -> Snapshot:
    """WireError when it is damaged, or of a version that this agent does not know."""
    try:
        snapshot = _snapshots.decode(payload)
    except msgspec.DecodeError as error:
        raise WireError(f"the engine's snapshot can't be read: {error}") from error
    if snapshot.v != 1:
        raise WireError(f"the engine's snapshot has version {snapshot.v}, this agent reads 1: upgrade the agent")
    return snapshot


def _decode_any(payload: bytes) -> EventBatch:
    try:
        raw = msgspec.msgpack.decode(payload)
        fields = list(raw.values()) if isinstance(raw, dict) else list(raw)
        ts, events = float(fields[0]), [event for event in map(_event, fields[1]) if event is not None]
    except (msgspec.DecodeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise WireError(f"an event batch can't be read: {error}") from error
    return EventBatch(ts, events)


def _event(raw: Any) -> Event | None:
    """A map with "type", or an array that begins with it; None for a type that is not known."""
    if isinstance(raw, dict):
        kind, fields = raw.get("type"), raw
    else:
        kind = raw[0]
        names = _STRUCTS[kind].__struct_fields__ if kind in _STRUCTS else ()
        fields = dict(zip(names, raw[1:], strict=False))
    if kind not in _STRUCTS:
        return None
    return msgspec.convert({**fields, "type": kind}, _STRUCTS[kind])
