"""The options of waiting queues, as manifests name them: accepted options, and errors that name the wrong one."""

from __future__ import annotations

import random
import sys

import pytest

from plumage.batching import BatchQueue, BatchState, Candidate, Decision, StepOutcome, make_queue, queue_options
from plumage.batching.base import Fcfs
from plumage.batching.feather import Feather
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
        ("BanditPaper", "exploration", -0.1),
        ("QLearning", "alpha", 0.0),
        ("QLearningPaper", "min_epsilon", 1.5),
        ("QLearning", "gamma", -0.1),
        ("QLearning", "decay", float("nan")),
    ],
)
def test_setting_out_of_bounds_is_refused_by_its_name(policy: str, option: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be "):
        queue(policy, **{option: value})


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("Bandit", {"forgetting": "Discounted", "discount": 0.5, "discount_interval": 3, "exploration": 2.0}),
        ("Bandit", {"forgetting": "SlidingWindow", "window": 7}),
        ("Bandit", {"forgetting": "None"}),
        ("BanditPaper", {"order": "Paper", "exploration": 1.0}),
        ("QLearningPaper", {"gamma": 0.5, "decay": 0.9}),
        ("ChtOrder", {"order": "Paper"}),
        ("QLearning", {"order": "TipLoss", "alpha": 0.2}),
    ],
)
def test_options_are_plain_values(policy: str, options: dict[str, object]) -> None:
    waiting = queue(policy, **options)
    waiting.insert(Candidate(1, (1, 2), 128, 0.0, "a"))
    assert waiting.select(now=0.0) == 1


@pytest.mark.parametrize(("option", "value"), [("forgetting", "Never"), ("order", "Newest")])
def test_error_of_an_unknown_choice_lists_the_known_ones(option: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{value!r}; there are: "):
        queue("Bandit", **{option: value})


class Small:
    """A stop policy of a user: at most so many requests at once."""

    def __init__(self, *, most: int = 2) -> None:
        self.most = most

    def decide(self, state: BatchState) -> Decision:
        return Decision.ADD if state.batch < self.most else Decision.STOP

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


class Newest(Fcfs):
    """A whole queue of a user."""

    def __init__(self, *, max_wait: float, depth: int = 1) -> None:
        super().__init__(max_wait=max_wait)
        self.depth = depth


class Neither:
    """No policy: it only observes."""

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the classes of this file importable by settings."""
    monkeypatch.setitem(sys.modules, "own_batching", sys.modules[__name__])


@pytest.mark.usefixtures("importable")
def test_import_path_names_a_stop_policy_with_its_options() -> None:
    waiting = queue("own_batching:Small", most=1, order="Paper", max_wait=9.0)
    assert isinstance(waiting, Feather)
    assert (type(waiting.policy), waiting.max_wait) == (Small, 9.0)
    for number in range(2):
        waiting.insert(Candidate(number, (1, 2), 128, 0.0))
    waiting.add(waiting.select(now=0.0))
    assert waiting.select(now=0.0) is None
    assert waiting.select(now=9.0) == 1, "it is past the ageing bound"
    assert queue_options("own_batching:Small") == ["most", "order"]


@pytest.mark.usefixtures("importable")
def test_import_path_names_a_queue_with_its_options() -> None:
    waiting = queue("own_batching:Newest", max_wait=9.0, depth=3)
    assert isinstance(waiting, Newest)
    assert (waiting.max_wait, waiting.depth) == (9.0, 3)
    assert queue_options("own_batching:Newest") == ["depth"]


@pytest.mark.usefixtures("importable")
def test_wrong_class_and_wrong_option_are_named() -> None:
    with pytest.raises(ConfigurationError, match="'own_batching:Neither' lacks decide"):
        queue("own_batching:Neither")
    with pytest.raises(ConfigurationError, match="stop policy own_batching:Small has no option least"):
        queue("own_batching:Small", least=1)
    with pytest.raises(ConfigurationError, match="batching policy own_batching:Newest, option depth: Expected `int`"):
        queue("own_batching:Newest", depth="x")
