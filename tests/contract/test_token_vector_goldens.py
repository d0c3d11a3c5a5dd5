"""Golden vectors of the token hash vectors, both schemes of FEATHER (§4.2.1).

What is stored under such hashes must be found again by a later version; a change here drops it all.
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
def test_algorithm_1(tokens: array[int], chunk: int, vector: tuple[int, ...]) -> None:
    assert incremental(tokens, chunk) == vector


@pytest.mark.parametrize(
    ("tokens", "chunk", "vector"),
    [
        (TEN, 4, (3998411974225752902, 1580564488177451987, 6334309069790221501)),
        (FOUR, 2, (4148650267135057483, 10757443097791980552)),
    ],
)
def test_algorithm_2(tokens: array[int], chunk: int, vector: tuple[int, ...]) -> None:
    assert chained(tokens, chunk) == vector


def test_an_engines_own_hashes_are_taken_as_they_are() -> None:
    assert strided([11, 12, 13, 14, 15], 2) == (12, 14)
