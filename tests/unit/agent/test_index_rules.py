"""Single rules of the index: salts, adapters, images, groups, copies, lost events, bounds, hotness."""

from __future__ import annotations

import pytest

from plumage.hashing.chunks import chain, seed
from plumage.rendering.bytetable import ByteTable
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.agent.index.local_hotness import LocalHotness
from plumage_engine.kv_events import BlockRemoved, BlockStored, Row

TABLE = ByteTable([bytes([byte]) * 64 for byte in range(32, 127)])
SIZE = 4  # 256 bytes: one chunk a block


def stored(keys: list[int], parent: int | None = None, **fields: object) -> BlockStored:
    """Blocks whose tokens follow from their key, so that equal keys have equal text."""
    ids = [(key + token) % 90 for key in keys for token in range(SIZE)]
    return BlockStored(keys, parent, ids, SIZE, **fields)  # type: ignore[arg-type]


def text_of(keys: list[int]) -> bytes:
    return TABLE.decode(stored(keys).token_ids)


def index(**options: int) -> CacheIndex:
    return CacheIndex("m", TABLE, **options)


def added(index: CacheIndex) -> list[int]:
    return [change.chunk for change in index.changes() if change.tier]


def test_salt_and_adapter_seed_the_chain() -> None:
    one = index()
    one.apply(stored([1, 2], extra_keys=[["tenant"], None]))
    one.apply(stored([11], lora_name="lora-a", extra_keys=[["lora-a"]]))
    one.apply(stored([21], lora_name="lora-a", extra_keys=[["lora-a", "tenant"]]))
    expected = chain(text_of([1, 2]), seed("m", salt="tenant"))
    expected += chain(text_of([11]), seed("m", "lora-a"))
    expected += chain(text_of([21]), seed("m", "lora-a", "tenant"))
    assert added(one) == expected


def test_salt_named_like_the_adapter_stays_a_salt() -> None:
    one = index()
    one.apply(stored([1], lora_name="x", extra_keys=[["x", "x"]]))
    assert added(one) == chain(text_of([1]), seed("m", "x", "x"))


@pytest.mark.parametrize("keys", [[["image-hash", 3]], [b"digest"], ["image", "salt"]])
def test_chain_ends_at_the_first_image(keys: list[object]) -> None:
    one = index()
    one.apply(stored([1, 2, 3], extra_keys=[None, keys, None]))
    one.apply(stored([4], parent=3))
    one.apply(stored([7], extra_keys=[keys]))
    assert added(one) == chain(text_of([1]), seed("m"))
    assert one.counters.unknown_parents == 0


def test_only_full_attention_groups_are_followed() -> None:
    one = index()
    one.apply(stored([1], group_idx=0, kv_cache_spec_kind="full_attention"))
    one.apply(stored([2], group_idx=1, kv_cache_spec_kind="sliding_window"))
    one.apply(BlockRemoved([1], "GPU", group_idx=1))
    assert added(one) == chain(text_of([1]), seed("m"))
    assert one.counters.unfollowed == 2


def test_chunk_is_held_until_its_last_copy_is_removed() -> None:
    one = index()
    one.apply(stored([1]))
    one.apply(stored([1]))
    one.apply(BlockRemoved([1]))
    assert len(added(one)) == 1
    one.apply(BlockRemoved([1]))
    assert [change.tier for change in one.changes()] == [0]


def test_host_copies_without_tokens_keep_the_chunk_in_its_tier() -> None:
    one = index()
    one.apply(stored([1, 2]))
    one.apply(BlockStored([1, 2], medium="CPU"))
    one.apply(BlockRemoved([2, 1], "GPU"))
    assert [change.tier for change in one.changes()] == [2, 2]


def test_blocks_below_a_lost_parent_are_counted_and_dropped() -> None:
    one = index()
    one.apply(stored([5, 6], parent=4))
    one.apply(BlockStored([7], medium="CPU"))
    assert (one.counters.unknown_parents, one.counters.stray_removals, len(one)) == (3, 0, 0)
    one.apply(BlockRemoved([5, 6]))
    assert one.counters.stray_removals == 2
    assert one.changes() == []


def test_returned_parent_makes_its_children_reachable_again() -> None:
    one = index()
    one.apply(stored([1, 2]))
    one.changes()
    one.apply(BlockRemoved([1]))
    assert [change.tier for change in one.changes()] == [0, 0]
    one.apply(stored([1]))
    assert added(one) == chain(text_of([1, 2]), seed("m"))


def test_capacity_bounds_the_blocks_and_drops_are_counted() -> None:
    one = index(capacity=2)
    one.apply(stored([1, 2, 3]))
    assert (len(one), one.counters.over_capacity) == (2, 1)
    one.apply(BlockRemoved([2]))
    one.apply(stored([9], parent=1))
    assert len(one) == 2


def test_snapshot_replaces_all_blocks_with_their_copies() -> None:
    one = index()
    one.apply(stored([8]))
    one.changes()
    ids = stored([1, 2]).token_ids
    one.load([Row(1, None, ids[:SIZE], "GPU", 0, None, None, 2), Row(2, 1, ids[SIZE:], "GPU", 0)], SIZE)
    changes = {change.chunk: change.tier for change in one.changes()}
    assert changes == dict.fromkeys(chain(text_of([1, 2]), seed("m")), 1) | {chain(text_of([8]), seed("m"))[0]: 0}
    one.apply(BlockRemoved([1], "GPU", 0))
    assert one.changes() == []


def test_salted_prefixes_are_not_listed() -> None:
    one = index()
    one.apply(stored([1], extra_keys=[["tenant-secret"]]))
    block = one.block(1)
    assert block is not None
    assert "tenant-secret" not in repr(block.origin)


class TestHotness:
    def test_prefix_gains_a_use_where_prompts_part(self) -> None:
        one = index()
        one.apply(stored([1, 2]))
        one.apply(stored([3], parent=2))  # the same request continues
        assert one.hotness.hottest(5) == []
        one.apply(stored([4], parent=2))  # another one branches off
        one.apply(stored([5], parent=2))
        [(block, uses)] = one.hotness.hottest(5)
        assert (block.key, uses) == (2, 2)
        assert one.hotness.prefix(block) == stored([1, 2]).token_ids

    def test_prefix_computed_twice_gains_a_use(self) -> None:
        one = index()
        one.apply(stored([1, 2]))
        one.apply(stored([1, 2, 3]))
        assert [(block.key, uses) for block, uses in one.hotness.hottest(5)] == [(2, 1)]
        one.apply(BlockStored([1, 2], medium="CPU"))
        assert [(block.key, uses) for block, uses in one.hotness.hottest(5)] == [(2, 1)]

    def test_salted_prompts_leave_no_token_ids(self) -> None:
        one = index()
        one.apply(stored([1], extra_keys=[["tenant"]]))
        block = one.block(1)
        assert block is not None
        assert one.hotness.prefix(block) is None
        assert one.hotness.ids == 0

    def test_stored_ids_are_bounded_and_the_hottest_keep_theirs(self) -> None:
        one = CacheIndex("m", TABLE, hotness=LocalHotness(max_ids=10 * SIZE))
        one.apply(stored([1, 2]))
        one.apply(stored([3], parent=2))
        one.apply(stored([4], parent=2))
        for key in range(100, 200):
            one.apply(stored([key]))
            assert one.hotness.ids <= 10 * SIZE
        [(hot, _)] = one.hotness.hottest(5)
        assert one.hotness.prefix(hot) == stored([1, 2]).token_ids
        assert one.hotness.prefix(one.block(100)) is None  # type: ignore[arg-type]

    def test_event_that_can_never_fit_takes_no_ids_from_others(self) -> None:
        one = CacheIndex("m", TABLE, hotness=LocalHotness(max_ids=3 * SIZE))
        one.apply(stored([1]))
        one.apply(stored([10, 11, 12, 13]))
        first, long = one.block(1), one.block(13)
        assert first is not None
        assert long is not None
        assert one.hotness.prefix(first) == stored([1]).token_ids
        assert one.hotness.prefix(long) is None

    def test_uses_age(self) -> None:
        one = CacheIndex("m", TABLE, hotness=LocalHotness(period=4))
        for key in (1, 2, 2, 2):
            one.apply(stored([key]))
        one.apply(stored([1]))
        one.apply(stored([2]))
        assert {block.key: uses for block, uses in one.hotness.hottest(5)} == {2: 1}

    def test_evicted_prefix_is_not_hot(self) -> None:
        one = index()
        one.apply(stored([1]))
        one.apply(stored([1]))
        one.apply(BlockRemoved([1]))
        one.apply(BlockRemoved([1]))
        assert one.hotness.hottest(5) == []

    def test_shared_part_counts_once_and_long_prefixes_replace_short_ones(self) -> None:
        one = index()
        one.apply(stored([1, 2, 3]))
        one.apply(stored([20], parent=2))
        one.apply(stored([30], parent=3))
        one.apply(stored([31], parent=3))
        one.apply(stored([21], parent=20))
        one.apply(stored([22], parent=20))
        blocks = [one.block(key) for key in (2, 3, 20)]
        found = one.hotness.prefixes([block for block in blocks if block], tokens=4 * SIZE)
        assert [(block.key, ids) for block, ids in found] == [
            (3, stored([1, 2, 3]).token_ids),
            (20, stored([1, 2]).token_ids + stored([20]).token_ids),
        ]
        assert [block.key for block, _ in one.hotness.prefixes([block for block in blocks if block], 3 * SIZE)] == [3]
        assert one.hotness.prefixes([block for block in blocks if block], SIZE) == []
