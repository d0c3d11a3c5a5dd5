"""The byte-chunk chain against its definition, and its continuation in pieces against the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from plumage.hashing import chunks
from plumage.hashing.chunks import CHUNK, ChainMemory, Link, chain, extend, seed

texts = st.text(max_size=8)


@given(data=st.binary(max_size=2000), start=st.integers(0, 2**64 - 1))
def test_chain_follows_its_definition(data: bytes, start: int) -> None:
    expected, previous = [], start
    for i in range(1, len(data) // CHUNK + 1):
        previous = xxh3_64_intdigest(data[CHUNK * (i - 1) : CHUNK * i], seed=previous)
        expected.append(previous)
    assert chain(data, start) == expected


@given(pieces=st.lists(st.binary(max_size=700), max_size=12), start=st.integers(0, 2**64 - 1))
def test_extend_in_pieces_is_the_chain_of_the_whole(pieces: list[bytes], start: int) -> None:
    whole = b"".join(pieces)
    hashes: list[int] = []
    link = Link(start)
    for piece in pieces:
        completed, link = extend(link, piece)
        hashes += completed
        assert len(link.tail) < CHUNK
    assert hashes == chain(whole, start)
    assert link == Link(hashes[-1] if hashes else start, whole[len(hashes) * CHUNK :])


@given(one=st.tuples(texts, texts, texts), other=st.tuples(texts, texts, texts))
def test_seeds_differ_when_any_field_differs(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (seed(*one) == seed(*other)) == (one == other)


def test_difference_in_one_chunk_changes_all_later_hashes() -> None:
    data = bytearray(4 * CHUNK)
    before = chain(bytes(data), seed("m"))
    data[CHUNK] = 1
    after = chain(bytes(data), seed("m"))
    assert before[0] == after[0]
    assert not set(before[1:]) & set(after[1:])


@given(
    prompts=st.lists(
        st.tuples(st.lists(st.sampled_from("abc"), max_size=20), st.integers(0, 2 * CHUNK), st.sampled_from((1, 2))),
        max_size=12,
    ),
    kept=st.integers(1, 4),
)
def test_stored_strides_change_no_chain(prompts: list[tuple[list[str], int, int]], kept: int) -> None:
    memory = ChainMemory(kept)
    for letters, rest, start in prompts:
        data = b"".join(letter.encode() * CHUNK for letter in letters) + b"r" * rest
        assert memory.chain(data, start) == chain(data, start)
        assert len(memory._young) + len(memory._old) <= 2 * kept


def test_repeated_stride_is_not_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, data = ChainMemory(), bytes(range(256)) * 20
    first = memory.chain(data, 7)
    hashed: list[int] = []
    monkeypatch.setattr(chunks, "chain", lambda data, seed: hashed.append(len(data)) or chain(data, seed))
    assert memory.chain(data, 7) == first
    assert hashed == [len(data) % ChainMemory.STRIDE]


def test_lone_surrogate_in_a_salt_is_hashed() -> None:
    assert seed("m", salt="\ud800") != seed("m", salt="\ud801")
