"""vLLM's KV events and an engine's snapshot: the structs, and their bytes.

The simulator writes what the agent reads, in the form of today's vLLM. A message is [topic, sequence number (8 bytes,
big-endian), msgpack of [timestamp, [events], data-parallel rank]]. An event is a map with a "type"; fields that vLLM
has a default for are left out at their default.

`decode_batch` takes any form that vLLM has used: the batch and each event are maps or arrays, block hashes are integers
or bytes. Events of an unknown type are skipped, because a newer engine may add some. msgspec decodes today's form in C
straight into structs: this is the agent's hot path.

Source: vllm/distributed/kv_events.py, 0.22 to 0.33.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from plumage.errors import PlumageError

__all__ = [
    "END_OF_REPLAY",
    "AllBlocksCleared",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "EventBatch",
    "ExtraKeys",
    "Row",
    "Snapshot",
    "TokenId",
    "WireError",
    "decode_batch",
    "decode_snapshot",
    "encode_batch",
    "encode_sequence",
    "encode_snapshot",
]

BlockHash = int | bytes
TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]
Size = Annotated[int, Meta(ge=0)]
ExtraKeys = Sequence[Any] | None
"""Of one block, untagged: the adapter's name, and in the first block of a prompt its cache salt."""

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
"""The sequence number that ends a replay."""
SNAPSHOT_VERSION = 1


class WireError(PlumageError):
    """A message from the engine that can't be read."""


def _none() -> None:
    return None


def _no_tokens() -> list[int]:
    return []


def _zero() -> int:
    return 0


class BlockStored(msgspec.Struct, tag=True, gc=False, omit_defaults=True):
    """Blocks of one chain became cached below `parent_block_hash` (None: they start a prompt).

    token_ids: of all the blocks, in order. extra_keys: one entry a block.
    """

    # vLLM always writes these, so a factory makes the default: msgspec leaves out other defaults.
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None = field(default_factory=_none)
    token_ids: list[TokenId] = field(default_factory=_no_tokens)
    block_size: Size = field(default_factory=_zero)
    lora_id: int | None = field(default_factory=_none)
    medium: str | None = field(default_factory=_none)
    lora_name: str | None = field(default_factory=_none)
    # vLLM leaves these out at their default.
    extra_keys: list[ExtraKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, gc=False, omit_defaults=True):
    """One copy of each of these blocks left `medium`."""

    block_hashes: list[BlockHash]
    medium: str | None = field(default_factory=_none)
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """The prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """What one engine step did to the cache. ts: the engine's wall clock; it distinguishes a restart from a repeat."""

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
    extra_keys: ExtraKeys = None
    copies: Size = 1


class Snapshot(msgspec.Struct, gc=False):
    """Everything an engine holds, valid at `seq`: events with a larger sequence number apply after it."""

    v: int
    seq: int
    block_size: Size
    blocks: list[Row]


_encoder = msgspec.msgpack.Encoder()
_batches = msgspec.msgpack.Decoder(EventBatch)
_snapshots = msgspec.msgpack.Decoder(Snapshot)
_STRUCTS: dict[str, type[Event]] = {kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}


def encode_batch(batch: EventBatch) -> bytes:
    """The third frame of a message."""
    return _encoder.encode(batch)


def encode_sequence(number: int) -> bytes:
    """The second frame of a message."""
    return number.to_bytes(8, "big")


def encode_snapshot(next_sequence: int, block_size: int, rows: list[Row]) -> bytes:
    """A snapshot that is valid after all batches below `next_sequence`."""
    return _encoder.encode(Snapshot(SNAPSHOT_VERSION, next_sequence - 1, block_size, rows))


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
    if snapshot.v != SNAPSHOT_VERSION:
        raise WireError(
            f"the engine's snapshot has version {snapshot.v}, this agent reads {SNAPSHOT_VERSION}: upgrade the agent"
        )
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
