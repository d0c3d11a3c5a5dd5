"""Moves blocks within vLLM's linked list of free blocks, which is valid again after each function."""

from __future__ import annotations

from collections.abc import Iterable

from plumage_engine.vllm.compat.block_pool import FreeKVCacheBlockQueue, KVCacheBlock

__all__ = ["move_behind", "skip_uncached", "swap"]


def skip_uncached(queue: FreeKVCacheBlockQueue, most: int) -> tuple[KVCacheBlock, int]:
    """The last of up to `most` empty blocks at the front, and their number; the list's head where there is none.

    vLLM puts blocks there that are freed without a hash.
    """
    last, found = queue.fake_free_list_head, 0
    while found < most:
        behind = last.next_free_block
        if behind.block_hash is not None:
            break
        last = behind
        found += 1
    return last, found


def move_behind(blocks: Iterable[KVCacheBlock], after: KVCacheBlock) -> KVCacheBlock:
    """Put free blocks in this order directly behind `after`, another block of the list or its head; returns the last.

    AttributeError for a block that is not in the list; those before it are in place then.
    """
    for block in blocks:
        before = block.prev_free_block
        if before is not after:
            behind, following = block.next_free_block, after.next_free_block
            before.next_free_block, behind.prev_free_block = behind, before
            after.next_free_block, following.prev_free_block = block, block
            block.prev_free_block, block.next_free_block = after, following
        after = block
    return after


def swap(first: KVCacheBlock, other: KVCacheBlock) -> None:
    """Swap `first` and `other`, which stands further back in the list."""
    if first is other:
        return
    ahead, before = first.prev_free_block, other.prev_free_block
    move_behind((other,), ahead)
    if before is not first:
        move_behind((first,), before)
