"""The loads of the FEATHER benchmark in real vLLM: which prompts begin alike, and how far."""

from __future__ import annotations

from itertools import takewhile

import pytest

from plumage_bench.benches.vllm_feather.cells import BLOCK, CELLS, TAIL, Cell, prompts

FIRST, SECOND = (74, 154, 81), (249, 58, 182)
"""Their first tokens before there were levels."""
NAMED = {cell.name: cell for cell in CELLS}


def together(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Leading tokens that both share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))


@pytest.mark.parametrize(
    ("name", "neighbours", "cousins"),
    [
        ("8 × 4k", 0, 0),
        ("8 × 4k, two levels", 2048, 0),
        ("8 × 4k, three levels", 2 * 10 * BLOCK, 10 * BLOCK),
    ],
)
def test_groups_share_the_levels_of_their_cell(name: str, neighbours: int, cousins: int) -> None:
    first = dict(prompts(NAMED[name], 3))
    assert {len(tokens) for tokens in first.values()} == {4096 + TAIL}
    assert together(first[0], first[1]) - neighbours < 4
    assert together(first[0], first[1]) >= neighbours
    assert together(first[0], first[2]) - cousins < 4
    assert together(first[0], first[2]) >= cousins
    assert together(first[0], first[4]) < 4


def test_prompts_of_a_one_level_cell_are_unchanged() -> None:
    small = Cell("2 × 128", 2, prefix=BLOCK, requests=2)
    assert [(group, tokens[:3]) for group, tokens in sorted(prompts(small, 1))] == [(0, FIRST), (1, SECOND)]


def test_cells_with_a_bound_of_their_own_have_twenty_pairs() -> None:
    assert {cell.groups for cell in CELLS if cell.counts} == {0, 1, 4, 8, 16, 20}
    assert [cell.pairs >= 20 for cell in CELLS if not cell.groups] == [True]
