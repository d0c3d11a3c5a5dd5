"""The prefix common to all, against the plain definition."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from plumage_engine.simulator.engine.shared_prefix import SharedPrefix, common_blocks

PATHS = st.lists(st.integers(0, 2), max_size=12)


def common(paths: list[list[int]]) -> int:
    """Leading elements that are equal in all paths; none for no paths."""
    return sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False)))


def chain(path: list[int]) -> tuple[int, ...]:
    return tuple(hash(tuple(path[: level + 1])) for level in range(len(path)))


@given(left=PATHS, right=PATHS)
def test_common_blocks(left: list[int], right: list[int]) -> None:
    assert common_blocks(chain(left), chain(right)) == common([left, right])


@given(steps=st.lists(st.one_of(PATHS, st.integers(0, 20)), max_size=40))
def test_members_are_added_and_removed(steps: list[list[int] | int]) -> None:
    shared = SharedPrefix()
    members: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, list):
            members[number] = step
            shared.add(number, chain(step))
        elif members:
            gone = sorted(members)[step % len(members)]
            del members[gone]
            shared.remove(gone)
        assert len(shared) == len(members)
        assert shared.blocks == common(list(members.values()))
