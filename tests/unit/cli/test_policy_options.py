"""A manifest's choice of the papers' forms reaches the policies that it names."""

from __future__ import annotations

import random

import pytest

from plumage.api.v1alpha1.feather import FeatherSpec
from plumage.batching import make_queue
from plumage.batching.base import MAX_WAIT
from plumage.batching.feather import Feather
from plumage.batching.stop import QLearning, Ucb
from plumage.batching.stop.credit import Credit
from plumage.settings.policies import feather


@pytest.mark.parametrize(("credit", "expected"), [("Trial", Credit.TRIAL), ("Step", Credit.STEP)])
@pytest.mark.parametrize("policy", ["Bandit", "QLearning"])
def test_the_credit_of_a_manifest_is_the_policys(policy: str, credit: str, expected: Credit) -> None:
    written = {"policy": policy, "bandit": {"credit": credit}, "qLearning": {"credit": credit}}
    settings = feather(FeatherSpec.model_validate(written))
    queue = make_queue(settings["policy"], rng=random.Random(1), **settings["options"])
    assert isinstance(queue, Feather)
    assert isinstance(queue.policy, Ucb | QLearning)
    assert queue.policy.credit is expected


def test_unless_told_a_decision_is_judged_by_its_trial() -> None:
    assert FeatherSpec().bandit.credit == FeatherSpec().q_learning.credit == Credit.TRIAL.value
    assert Ucb().credit is QLearning(random.Random(1)).credit is Credit.TRIAL


def test_one_bound_of_ageing_holds_whoever_makes_the_queue() -> None:
    assert FeatherSpec().max_wait_seconds == MAX_WAIT
    assert make_queue("Fcfs", rng=random.Random(1)).max_wait == MAX_WAIT  # type: ignore[attr-defined]
