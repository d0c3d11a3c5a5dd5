"""The baselines' index of cached prefixes: correct, bounded, leaves first."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from plumage_bench.baselines.routing.prefix_index import PrefixIndex


def _chain(path: list[int]) -> tuple[int, ...]:
    """Chained names: equal exactly where the paths up to there are equal."""
    return tuple(hash(tuple(path[: depth + 1])) & (2**61 - 1) for depth in range(len(path)))


_PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.integers(0, 3), _PATHS), max_size=60), _PATHS, st.integers(1, 12))
def test_index_agrees_with_one_ordered_set_per_slot(
    inserts: list[tuple[int, list[int]]], asked: list[int], capacity: int
) -> None:
    index = PrefixIndex(capacity)
    model: dict[int, OrderedDict[int, None]] = {slot: OrderedDict() for slot in range(4)}
    for slot, path in inserts:
        chain = _chain(path)
        index.insert(slot, chain)
        for chunk in reversed(chain):
            model[slot].pop(chunk, None)
            model[slot][chunk] = None
        while len(model[slot]) > capacity:
            model[slot].popitem(last=False)
    chain = _chain(asked)
    expected = {}
    for slot, held in model.items():
        depth = next((level for level, chunk in enumerate(chain) if chunk not in held), len(chain))
        if depth:
            expected[slot] = depth
        assert index.size(slot) == len(held)
    assert dict(index.match(chain)) == expected


def test_leaves_are_evicted_before_their_parents() -> None:
    index = PrefixIndex(4)
    index.insert(0, (1, 2, 3))
    index.insert(0, (1, 9))
    index.insert(0, (1, 8))
    assert index.match((1, 2, 3)) == {0: 2}, "the coldest leaf was evicted, not its parent"
    assert index.match((1, 9)) == {0: 2}


def test_forgotten_slot_holds_nothing() -> None:
    index = PrefixIndex(10)
    index.insert(0, (1, 2))
    index.insert(1, (1, 2))
    index.forget(0)
    assert index.match((1, 2)) == {1: 2}
    assert index.size(0) == 0
    assert index.match(()) == {}
