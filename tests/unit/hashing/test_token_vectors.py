"""Hash vectors over token chunks: both of the paper's schemes, and an engine's own hashes."""

from __future__ import annotations

from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from plumage.hashing.token_vectors import chained, incremental, strided

SCHEMES = pytest.mark.parametrize("scheme", [incremental, chained])
ids = st.lists(st.integers(0, 7), max_size=40)


def tokens(values: list[int]) -> array:
    return array("I", values)


@SCHEMES
@given(one=ids, other=ids, chunk=st.integers(1, 9))
def test_vectors_are_equal_at_a_level_iff_the_tokens_up_to_it_are(
    scheme, one: list[int], other: list[int], chunk: int
) -> None:
    left, right = scheme(tokens(one), chunk), scheme(tokens(other), chunk)
    assert len(left) == -(-len(one) // chunk)
    for level in range(min(len(left), len(right))):
        end = (level + 1) * chunk
        assert (left[level] == right[level]) == (one[:end] == other[:end])


@SCHEMES
def test_partial_last_chunk_counts_only_when_the_tails_are_identical(scheme) -> None:
    longer, shorter = scheme(tokens([1, 2, 3, 4, 5]), 2), scheme(tokens([1, 2, 3, 4]), 2)
    assert longer[:2] == shorter
    assert scheme(tokens([1, 2, 3]), 2)[1] != shorter[1]


def test_algorithm_1_is_one_running_xxh64() -> None:
    data = tokens(list(range(10))).tobytes()
    assert incremental(tokens(list(range(10))), 4) == tuple(xxhash.xxh64_intdigest(data[:end]) for end in (16, 32, 40))


def test_algorithm_2_chains_hashes_of_chunks_from_zero() -> None:
    data = tokens([5, 6]).tobytes()
    own = xxhash.xxh64_intdigest(data)
    assert chained(tokens([5, 6]), 2) == (xxhash.xxh64_intdigest(bytes(8) + own.to_bytes(8, "little")),)


def test_two_schemes_give_different_values_so_the_scheme_is_part_of_a_key() -> None:
    assert not set(incremental(tokens([1, 2, 3, 4]), 2)) & set(chained(tokens([1, 2, 3, 4]), 2))


def test_engine_hashes_are_taken_every_stride_without_the_partial_chunk() -> None:
    assert strided([10, 11, 12, 13, 14], 2) == (11, 13)
    assert strided([10], 2) == ()
    assert strided([b"a", b"b"], 1) == (b"a", b"b")


def test_invalid_tokens_or_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="32-bit ids"):
        incremental(b"abc", 4)
    with pytest.raises(ValueError, match="at least 1 token"):
        chained(b"abcd", 0)
    with pytest.raises(ValueError, match="stride must be"):
        strided([1], 0)
