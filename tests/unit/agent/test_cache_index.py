"""The agent's index against a slow model that recomputes everything from the cached blocks."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumage.hashing.chunks import ENDS, chain, seed
from plumage.rendering.bytetable import ByteTable
from plumage_engine.agent.index.block import Checkpoint
from plumage_engine.agent.index.cache_index import CacheIndex
from plumage_engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Row

# Several token sequences for the same bytes, as in sampled text.
TABLE = ByteTable([b"a" * 64, b"a" * 32, b"b" * 64, b"a" * 96, b"c" * 7])
SIZE = 4
TIERS = {"GPU": 1, "CPU": 2, "STORAGE": 3}


def key_of(prompt: tuple[int, ...], salt: str, end: int) -> int:
    return hash((prompt[:end], salt)) & (2**63 - 1)


@dataclass
class SlowModel:
    """Copies by (block, tier). A chunk's tier is the best over its chains, and each chain has the worst tier on it."""

    copies: Counter[tuple[int, int]] = field(default_factory=Counter)
    paths: dict[int, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    def tier(self, key: int) -> int:
        return min((tier for (block, tier), count in self.copies.items() if block == key and count), default=4)

    def held(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for path, salt in self.paths.values():
            reach = max(self.tier(key_of(path, salt, end)) for end in range(SIZE, len(path) + 1, SIZE))
            if reach < 4:
                start = seed("m", salt=salt)
                for chunk in chain(TABLE.decode(path), start)[len(chain(TABLE.decode(path[:-SIZE]), start)) :]:
                    found[chunk] = min(found.get(chunk, 4), reach)
        return found


blocks = st.tuples(*[st.sampled_from([0, 0, 1, 1, 2, 3, 4])] * SIZE)
store = st.tuples(
    st.just("store"),
    st.lists(
        st.sampled_from([(0, 0, 0, 0), (1, 1, 3, 3), (2, 2, 2, 2), (4, 0, 1, 3)]) | blocks, min_size=1, max_size=5
    ),
    st.sampled_from(["", "tenant"]),
    st.sampled_from(["GPU", "GPU", "CPU", "STORAGE"]),
)
remove = st.tuples(st.just("remove"), st.integers(0, 1000), st.sampled_from(["GPU", "GPU", "CPU", "STORAGE"]))
steps = st.lists(
    store | store | remove | remove | st.tuples(st.sampled_from(["clear", "snapshot", "checkpoint"])), max_size=40
)


class World:
    """Applies the same steps to the index, as events, and to the model."""

    def __init__(self) -> None:
        self.index, self.model = CacheIndex("m", TABLE), SlowModel()
        self.published: dict[int, int] = {}

    def store(self, path: list[tuple[int, ...]], salt: str, medium: str) -> None:
        """Stores blocks that miss in this medium, as an engine would: all from the first missing one on."""
        prompt = tuple(token for block in path for token in block)
        keys = [key_of(prompt, salt, end) for end in range(SIZE, len(prompt) + 1, SIZE)]
        known = 0
        while known < len(keys) - 1 and self.index.block(keys[known]) is not None:
            known += 1
        extra = [[salt] if salt and number == 0 else None for number in range(len(keys))][known:]
        parent = keys[known - 1] if known else None
        event = BlockStored(keys[known:], parent, list(prompt[known * SIZE :]), SIZE, medium=medium, extra_keys=extra)
        self.index.apply(event)
        for number in range(known, len(keys)):
            self.model.copies[keys[number], TIERS[medium]] += 1
            self.model.paths[keys[number]] = (prompt[: (number + 1) * SIZE], salt)

    def remove(self, which: int, medium: str) -> None:
        if self.model.paths:
            key = list(self.model.paths)[which % len(self.model.paths)]
            self.index.apply(BlockRemoved([key], medium))
            if self.model.copies[key, TIERS[medium]]:
                self.model.copies[key, TIERS[medium]] -= 1

    def clear(self) -> None:
        self.index.apply(AllBlocksCleared())
        self.model = SlowModel()

    def snapshot(self) -> None:
        """Sends the cached blocks as a snapshot, which cannot contain orphans."""
        rows, copies = [], Counter[tuple[int, int]]()
        for key, (path, salt) in sorted(self.model.paths.items(), key=lambda item: len(item[1][0])):
            parent = key_of(path, salt, len(path) - SIZE) if len(path) > SIZE else None
            for medium, tier in TIERS.items():
                count = self.model.copies[key, tier]
                if count and (parent is None or any(copies[parent, other] for other in TIERS.values())):
                    extra = [salt] if salt and parent is None else None
                    rows.append(Row(key, parent, list(path[-SIZE:]), medium, None, None, extra, count))
                    copies[key, tier] = count
        self.index.load(rows, SIZE)
        self.model.copies = copies

    def checkpoint(self) -> None:
        """Another process takes over and publishes all chunks again."""
        saved = msgspec.msgpack.encode(self.index.save(0, None))
        self.index = CacheIndex("m", TABLE)
        self.index.restore(msgspec.msgpack.decode(saved, type=Checkpoint))
        self.published.clear()

    def check(self) -> None:
        for chunk, tier, tokens in self.index.changes():
            assert tier != self.published.get(chunk, 0)
            if tier:
                self.published[chunk] = tier
                assert tokens > 0
            else:
                del self.published[chunk]


@settings(max_examples=150, deadline=None)
@given(steps=steps, check_every=st.integers(1, 5))
def test_held_chunks_are_those_of_whole_chains(steps: list[tuple], check_every: int) -> None:
    world = World()
    for number, (name, *arguments) in enumerate(steps):
        getattr(world, name)(*arguments)
        if number % check_every == 0:
            world.check()
    world.check()
    assert world.published == world.model.held()
    assert world.index.chunks >= len(world.published)


@settings(max_examples=60, deadline=None)
@given(steps=steps)
def test_index_is_empty_after_all_removals(steps: list[tuple]) -> None:
    world = World()
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
    for (key, tier), count in world.model.copies.items():
        medium = next(name for name, number in TIERS.items() if number == tier)
        world.index.apply(BlockRemoved([key] * count, medium))
    world.check()
    assert world.published == {}
    assert (len(world.index), world.index.chunks, world.index.hotness.ids) == (0, 0, 0)


@pytest.mark.parametrize("seed_of_prompt", range(4))
def test_chunks_of_a_long_prompt_are_those_of_its_chain(seed_of_prompt: int) -> None:
    """160 KiB, where a chunk has 16 pieces; engine steps of any length."""
    rng, index = random.Random(seed_of_prompt), CacheIndex("m", TABLE)
    prompt: list[int] = []
    above = None
    while len(prompt) < 3200:
        ids = rng.choices(range(4), k=rng.randint(1, 60) * SIZE)
        hashes = [rng.getrandbits(64) for _ in range(0, len(ids), SIZE)]
        index.apply(BlockStored(hashes, above, ids, SIZE))
        above = hashes[-1]
        prompt += ids
    ends = TABLE.ends(prompt)
    keys = chain(TABLE.decode(prompt), seed("m"))
    assert len(keys) > 160
    changes = index.changes()
    assert [change.chunk for change in changes] == keys
    assert [change.tokens for change in changes] == [bisect_right(ends, end) for end in ENDS[1 : len(keys) + 1]]


@given(st.lists(blocks, min_size=1, max_size=12))
def test_predicted_chunks_are_the_chain_of_the_cached_bytes(path: list[tuple[int, ...]]) -> None:
    world = World()
    world.store(path, "", "GPU")
    world.check()
    data = TABLE.decode([token for block in path for token in block])
    assert set(world.published) == set(chain(data, seed("m")))


@given(st.lists(blocks, min_size=1, max_size=12))
def test_tokens_of_a_chunk_are_those_that_end_within_it(path: list[tuple[int, ...]]) -> None:
    index = CacheIndex("m", TABLE)
    tokens = [token for block in path for token in block]
    index.apply(
        BlockStored([hash((1, *tokens[: end + SIZE])) for end in range(0, len(tokens), SIZE)], None, tokens, SIZE)
    )
    ends = TABLE.ends(tokens)
    order = {key: number for number, key in enumerate(chain(TABLE.decode(tokens), seed("m")), start=1)}
    changes = index.changes()
    assert [change.chunk for change in changes] == list(order)
    for change in changes:
        assert change.tokens == sum(end <= ENDS[order[change.chunk]] for end in ends)
