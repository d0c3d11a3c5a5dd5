"""Stores the agent's index on disk, for engines that have no snapshot route.

Beside a stock vLLM a restarted agent knows only the batches that the replay still has. So the agent writes its index to
a file, with the number and time of the last batch. The event stream verifies it by a replay, or discards it. The file
holds salts and up to 255 bytes of prompt text a block: it belongs on the pod's emptyDir and only its owner can read it.
A file that is torn, or of another version or model, is ignored.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from plumage_engine.agent.index.block import Block, Link, Origin
from plumage_engine.kv_events import BlockHash

__all__ = ["VERSION", "Checkpoint", "Saved", "block_of", "read", "row_of", "write"]

log = logging.getLogger(__name__)

VERSION = 2


class Saved(msgspec.Struct, array_like=True, gc=False):
    """One block. link: where the chain stands, None behind an image. chunks: with their tokens."""

    key: BlockHash
    parent: BlockHash | None
    adapter: str
    salt: str
    link: Link | None
    tokens: int
    fresh: bool
    copies: int
    chunks: list[tuple[int, int]]


class Checkpoint(msgspec.Struct, gc=False):
    """An index after batch `seq`, parents before their children."""

    version: int
    model: str
    seq: int
    ts: float | None
    groups: list[int | None]
    blocks: list[Saved]


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file atomically. An error, such as a full disk, is logged."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.msgpack.encode(checkpoint))
        draft.replace(path)
    except OSError as error:
        log.warning("cannot write the checkpoint %s: %s", path, error.strerror)
        draft.unlink(missing_ok=True)


def read(path: Path, model: str) -> Checkpoint | None:
    """The checkpoint of this model; None where there is none that can be used."""
    try:
        checkpoint = msgspec.msgpack.decode(path.read_bytes(), type=Checkpoint)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.warning("the checkpoint %s can't be read: %s", path, type(error).__name__)
        return None
    return checkpoint if (checkpoint.version, checkpoint.model) == (VERSION, model) else None


def row_of(block: Block, chunks: Iterable[tuple[int, int]]) -> Saved:
    parent = block.parent.key if block.parent is not None else None
    origin = block.origin
    return Saved(
        block.key, parent, origin.adapter, origin.salt, block.link, block.tokens, block.fresh,
        block.copies, list(chunks),
    )  # fmt: skip


def block_of(row: Saved, parent: Block | None, origin: Origin) -> Block:
    """A block that the index must still link to its parent and make reachable."""
    block = Block(row.key, parent, origin, row.link, row.tokens)
    block.fresh, block.copies = row.fresh, row.copies
    block.chunks = tuple(chunk for chunk, _ in row.chunks)
    return block
