"""The lowest score wins, also among scores of a policy of another package."""

from __future__ import annotations

import random

import pytest

import plumage.routing.ties
from plumage.errors import ConfigurationError
from plumage.routing import Lbgr, make_policy
from plumage.routing.ties import lowest_index

NAN = float("nan")
COMPILED = not str(plumage.routing.ties.__file__).endswith(".py")


class Derived(Lbgr):
    """A policy that derives from a class of the compiled modules. Among the sources it fails as it would there."""

    def __init__(self, *, rng: random.Random) -> None:
        if not COMPILED:
            raise TypeError("interpreted classes cannot inherit from compiled")
        super().__init__(rng=rng)


@pytest.mark.parametrize(("scores", "index"), [([2.0, 1.0, 3.0], 1), ([NAN, NAN], 0), ([1.0, NAN], 0), ([NAN, 1.0], 0)])
def test_lowest_score_wins_and_nan_is_no_error(scores: list[float], index: int) -> None:
    assert lowest_index(scores, random.Random(1)) == index


def test_equal_scores_are_drawn() -> None:
    rng = random.Random(1)
    assert {lowest_index([1.0, 2.0, 1.0, 1.0], rng) for _ in range(50)} == {0, 2, 3}


def test_policy_of_a_compiled_class_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage.routing.factory.load_class", lambda *_: Derived)
    with pytest.raises(ConfigurationError, match=r"derive from plumage\.routing\.base\.ScoringPolicy"):
        make_policy("tests:Derived", rng=random.Random(1))
