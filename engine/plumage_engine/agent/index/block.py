"""A cached block as the agent knows it, and the form in which a checkpoint stores it.

Its origin separates prompts with the same text.

`link` is the state of the byte chain after the block; a child continues it with its own tokens' bytes. One child is
stored without a container, because most blocks have one and a set takes 200 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from plumage_engine.agent.index.tier_counts import GONE
from plumage_engine.kv_events import BlockHash

__all__ = [
    "VERSION", "Block", "Checkpoint", "Link", "Origin", "Saved", "adopt", "block_of", "children_of", "disown",
    "last_chunk", "row_of",
]  # fmt: skip

VERSION = 2
"""Of `Checkpoint`."""

Link = tuple[int, bytes, int]
"""The state of a prompt's chain: the hash of the last whole piece (or the seed), the bytes after it, and the number of
whole pieces. A plain tuple, because the agent makes thousands a second."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a prompt is hashed with besides its text."""

    adapter: str = ""
    salt: str = ""

    def __repr__(self) -> str:
        """Without the salt: it is a tenant's secret."""
        return f"Origin(adapter={self.adapter!r}, salted={bool(self.salt)})"


class Block(msgspec.Struct, eq=False):
    """A cached block, or the ghost of one that still has cached children. A struct, because thousands are made a
    second, and C fills it in."""

    key: BlockHash
    parent: Block | None  # None: the first of a prompt
    origin: Origin
    link: Link | None  # None: behind an image, where the chain has ended
    tokens: int  # of the prompt, up to this block's end
    fresh: bool = False  # whether the next token starts a text (ByteTable's dummy prefixes)
    reach: int = GONE  # slowest tier on the way from the prompt's start
    copies: int = 0  # counts by tier (`tier_counts`)
    chunks: tuple[int, ...] = ()  # completed in this block
    ids: bytes | None = None  # token ids, packed, while `LocalHotness` keeps them
    children: Block | set[Block] | None = None

    def __repr__(self) -> str:
        """Without text, and without parent and children, whose representations would recurse."""
        return f"Block({self.key!r}, tokens={self.tokens}, reach={self.reach})"


def children_of(block: Block) -> Iterable[Block]:
    children = block.children
    if children is None:
        return ()
    return (children,) if isinstance(children, Block) else children


def last_chunk(block: Block) -> int | None:
    """The last chunk that is whole at the block's end; None when the prompt up to there is shorter than a chunk."""
    at: Block | None = block
    while at is not None and not at.chunks:
        at = at.parent
    return at.chunks[-1] if at is not None else None


def adopt(parent: Block, child: Block) -> None:
    if parent.children is None:
        parent.children = child
    elif isinstance(parent.children, Block):
        parent.children = {parent.children, child}
    else:
        parent.children.add(child)


def disown(parent: Block, child: Block) -> None:
    if parent.children is child:
        parent.children = None
    elif isinstance(parent.children, set):
        parent.children.discard(child)
        if not parent.children:
            parent.children = None


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
