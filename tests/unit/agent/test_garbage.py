"""An agent checks its engine for weeks, so what each check leaves in cycles is collected soon."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from plumage_engine.agent.__main__ import collect_seldom


class Cycle:
    """Only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    collect_seldom()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("seldom")
def test_few_unused_objects_are_kept_in_cycles() -> None:
    made = [weakref.ref(Cycle()) for _ in range(40_000)]
    assert sum(one() is not None for one in made) < 15_000
