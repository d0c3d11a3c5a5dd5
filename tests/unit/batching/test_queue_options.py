"""The options of waiting queues, as manifests name them: what is taken, and what is refused by its name."""

from __future__ import annotations

import random

import pytest

from plumage.batching import BatchQueue, Candidate, make_queue
from plumage.errors import ConfigurationError


def queue(policy: str, **options: object) -> BatchQueue:
    return make_queue(policy, rng=random.Random(3), **options)


def test_unknown_names_and_options_are_named() -> None:
    with pytest.raises(ConfigurationError, match="no batching policy named 'Best'; there are: Bandit"):
        queue("Best")
    with pytest.raises(ConfigurationError, match="batching policy Fcfs has no option exploration; it has none"):
        queue("Fcfs", exploration=1)
    with pytest.raises(ConfigurationError, match="stop policy Bandit has no option alpha; its options: exploration, "):
        queue("Bandit", alpha=1)
    with pytest.raises(ConfigurationError, match="stop policy QLearning, option alpha: Expected `float`, got `str`"):
        queue("QLearning", alpha="high")


@pytest.mark.parametrize(
    ("policy", "option", "value"),
    [
        ("Fcfs", "max_wait", float("nan")),
        ("Fcfs", "max_wait", -1.0),
        ("Bandit", "exploration", float("nan")),
        ("Bandit", "discount", 1.5),
        ("Bandit", "discount_interval", 0),
        ("QLearning", "alpha", 0.0),
        ("QLearning", "gamma", -0.1),
        ("QLearning", "decay", float("nan")),
        ("Dynamic", "target", 0.0),
        ("Dynamic", "smallest", 0),
        ("Dynamic", "cut", 1.2),
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_its_name(policy: str, option: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be "):
        queue(policy, **{option: value})


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("Bandit", {"forgetting": "Discounted", "discount": 0.5, "discount_interval": 3, "exploration": 2.0}),
        ("Bandit", {"forgetting": "SlidingWindow", "window": 7}),
        ("Bandit", {"forgetting": "None"}),
        ("ChtOrder", {"order": "Paper"}),
        ("QLearning", {"order": "TipLoss", "alpha": 0.2}),
    ],
)
def test_options_are_plain_values(policy: str, options: dict[str, object]) -> None:
    waiting = queue(policy, **options)
    waiting.insert(Candidate(1, (1, 2), 128, 0.0, "a"))
    assert waiting.select(now=0.0) == 1


@pytest.mark.parametrize(("option", "value"), [("forgetting", "Never"), ("order", "Newest")])
def test_an_unknown_choice_names_the_known_ones(option: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{value!r}; there are: "):
        queue("Bandit", **{option: value})
