"""Options are checked against a constructor's parameters; errors inside the constructor are not hidden."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from plumage.batching import make_queue
from plumage.batching.stop import QLearning
from plumage.errors import ConfigurationError
from plumage.options import check_options


@dataclass
class Settings:
    rate: float = 1.0
    count: int | None = None


class Nothing:
    pass


def function(rng: object, *, name: str = "", weights: Sequence[float] = ()) -> None:
    pass


def test_valid_options_pass() -> None:
    check_options("it", Settings, {"rate": 2, "count": None})
    check_options("it", function, {"name": "a", "weights": (1.0, 2.0)}, given=("rng",))
    check_options("it", Nothing, {})


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Settings, {"rat": 1.0, "cound": 2}, "it has no option cound, rat; its options: rate, count"),
        (Nothing, {"rate": 1.0}, "it has no option rate; it has none"),
        (function, {"rng": 1}, "it has no option rng; its options: name, weights"),
        (Settings, {"rate": "fast"}, "it, option rate: Expected `float`, got `str`, got 'fast'"),
        (Settings, {"rate": True}, "it, option rate: Expected `float`, got `bool`, got True"),
        (function, {"weights": [1.0, None]}, "it, option weights: Expected `float`, got `null`"),
    ],
)
def test_invalid_options_are_named(make: type, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        check_options("it", make, options, given=("rng",))


def test_error_in_a_constructor_is_no_error_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: QLearning, rng: object, *, alpha: float = 1.0) -> None:
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(QLearning, "__init__", broken)
    with pytest.raises(TypeError, match="a mistake of ours"):
        make_queue("QLearning", rng=random.Random(1), alpha=0.5)
