"""Golden vectors of the token hashes, for both schemes of FEATHER (§4.2.1).

A later version must find what was stored under these hashes. A change here invalidates all of it.
"""

from __future__ import annotations

from array import array

import pytest

from plumage.hashing.token_vectors import chained, incremental, strided

TEN, FOUR = array("I", range(1, 11)), array("I", [128000, 9906, 1917, 0])


@pytest.mark.parametrize(
    ("tokens", "chunk", "vector"),
    [
        (TEN, 4, (2877822695146591398, 694496772849014373, 17949331882592863301)),
        (FOUR, 2, (9140129253574154799, 1815577865085947442)),
    ],
)
def test_algorithm_1_is_golden(tokens: array[int], chunk: int, vector: tuple[int, ...]) -> None:
    assert incremental(tokens, chunk) == vector


@pytest.mark.parametrize(
    ("tokens", "chunk", "vector"),
    [
        (TEN, 4, (3998411974225752902, 1580564488177451987, 6334309069790221501)),
        (FOUR, 2, (4148650267135057483, 10757443097791980552)),
    ],
)
def test_algorithm_2_is_golden(tokens: array[int], chunk: int, vector: tuple[int, ...]) -> None:
    assert chained(tokens, chunk) == vector


def test_engine_hashes_are_used_unchanged() -> None:
    assert strided([11, 12, 13, 14, 15], 2) == (12, 14)
