"""The byte-chunk chain against its definition."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from plumage.hashing import chunks
from plumage.hashing.chunks import ENDS, PIECE, ChainMemory, chain, depth_of, ends_chunk, pieces, seed
from plumage_router.request.text_sizes import MAX_RENDERED

texts = st.text(max_size=8)


def reference(data: bytes, start: int) -> list[int]:
    """The definition, byte by byte: a chunk's key is the hash of its last piece."""
    keys, previous, begun = [], start, 0
    for end in range(PIECE, len(data) + 1, PIECE):
        previous = xxh3_64_intdigest(data[end - PIECE : end], seed=previous)
        if end - begun == PIECE << min(4, (begun // 16384).bit_length()):
            keys.append(previous)
            begun = end
    return keys


lengths = st.integers(0, 3000) | st.integers(0, 300_000) | st.sampled_from(ENDS[:300]).map(lambda end: max(0, end - 1))


@given(size=lengths, start=st.integers(0, 2**64 - 1))
def test_chain_follows_its_definition(size: int, start: int) -> None:
    data = random.Random(size).randbytes(size)
    assert chain(data, start) == reference(data, start)


@given(size=lengths)
def test_ends_are_those_of_the_chain(size: int) -> None:
    data = bytes(size)
    hashes = pieces(data, 1)
    keys = chain(data, 1)
    assert len(keys) == depth_of(size)
    assert keys == [hashes[end // PIECE - 1] for end in ENDS[1 : len(keys) + 1]]
    assert keys == [key for number, key in enumerate(hashes, 1) if ends_chunk(number)]


def test_chunk_is_at_most_a_thirty_second_of_what_is_before_it_and_four_kilobytes() -> None:
    for start, end in pairwise(ENDS):
        assert end - start <= max(PIECE, start // 32)
        assert end - start <= 4096
    assert ENDS[-1] > MAX_RENDERED, "a router looks up the end of each chunk that it renders"


@given(one=st.tuples(texts, texts, texts), other=st.tuples(texts, texts, texts))
def test_seeds_differ_when_any_field_differs(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (seed(*one) == seed(*other)) == (one == other)


def test_difference_in_one_chunk_changes_all_later_hashes() -> None:
    data = bytearray(4 * PIECE)
    before = chain(bytes(data), seed("m"))
    data[PIECE] = 1
    after = chain(bytes(data), seed("m"))
    assert before[0] == after[0]
    assert not set(before[1:]) & set(after[1:])


@given(
    prompts=st.lists(
        st.tuples(
            st.lists(st.sampled_from((b"a", b"b" * 40, b"c" * 400)), max_size=20),
            st.integers(0, 2 * PIECE),
            st.sampled_from((1, 2)),
        ),
        max_size=12,
    ),
    kept=st.integers(1, 4),
)
def test_match_cache_changes_no_chain(prompts: list[tuple[list[bytes], int, int]], kept: int) -> None:
    memory = ChainMemory(kept)
    for letters, rest, start in prompts:
        data = b"".join(letter * PIECE for letter in letters) + b"r" * rest
        assert memory.chain(data, start) == chain(data, start)
        assert len(memory._young) + len(memory._old) <= 2 * kept


@pytest.mark.parametrize("size", [20 * PIECE, 100_000])
def test_repeated_stride_is_not_hashed_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, data = ChainMemory(), random.Random(1).randbytes(size)
    first = memory.chain(data, 7)
    hashed: list[int] = []
    monkeypatch.setattr(chunks, "pieces", lambda data, seed: hashed.append(len(data)) or pieces(data, seed))
    assert memory.chain(data, 7) == first
    depth = depth_of(size)
    assert sum(hashed) == ENDS[depth] - ENDS[depth // 8 * 8], "what is behind the last stride"


def test_lone_surrogate_in_a_salt_is_hashed() -> None:
    assert seed("m", salt="\ud800") != seed("m", salt="\ud801")
