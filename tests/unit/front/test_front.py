"""`Front` drops the keys of a dict in the order of an OrderedDict, whatever is deleted and renewed meanwhile."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage.front import Front


@given(st.integers(1, 400), st.lists(st.tuples(st.sampled_from(("renew", "delete", "drop")), st.integers(0, 40))))
def test_it_drops_the_oldest_like_an_ordered_dict(capacity: int, steps: list[tuple[str, int]]) -> None:
    reference: OrderedDict[int, int] = OrderedDict((key, key) for key in range(20))
    entries = dict(reference)
    front = Front(entries, capacity)
    for what, key in steps:
        if what == "drop":
            if reference:
                reference.popitem(last=False)
                front.drop()
        else:
            reference.pop(key, None)
            entries.pop(key, None)
            front.left(key)
            if what == "renew":
                reference[key] = entries[key] = key
        assert list(entries) == list(reference)


def test_an_empty_dict_has_no_oldest_key() -> None:
    with pytest.raises(KeyError):
        Front({}, 4).drop()
