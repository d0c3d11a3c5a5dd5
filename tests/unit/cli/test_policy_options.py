"""A manifest's choice between the papers' forms reaches the policies that it names."""

from __future__ import annotations

import random

import pytest

from plumage.api.v1alpha1.feather import FeatherSpec
from plumage.batching import make_queue
from plumage.batching.base import MAX_WAIT
from plumage.batching.feather import Feather
from plumage.batching.stop import QLearning, QLearningPaper, Ucb, UcbPaper
from plumage.batching.stop.credit import Credit
from plumage.settings.policies import feather


@pytest.mark.parametrize(("credit", "expected"), [("Trial", Credit.TRIAL), ("Step", Credit.STEP)])
@pytest.mark.parametrize("policy", ["Bandit", "QLearning"])
def test_credit_setting_reaches_the_policy(policy: str, credit: str, expected: Credit) -> None:
    written = {"policy": policy, "bandit": {"credit": credit}, "qLearning": {"credit": credit}}
    settings = feather(FeatherSpec.model_validate(written))
    queue = make_queue(settings.policy, rng=random.Random(1), **settings.options)
    assert isinstance(queue, Feather)
    assert isinstance(queue.policy, Ucb | QLearning)
    assert queue.policy.credit is expected


def test_printed_forms_have_their_own_constants_and_the_shared_fields() -> None:
    bandit = {"form": "Paper", "exploration": "0.3", "credit": "Step", "forgetting": "None"}
    written = {"bandit": bandit, "qLearning": {"form": "Paper", "discountFactor": "0.5", "explorationDecay": "0.1"}}
    made = []
    for policy in ("Bandit", "QLearning"):
        settings = feather(FeatherSpec.model_validate({**written, "policy": policy}))
        queue = make_queue(settings.policy, rng=random.Random(1), **settings.options)
        assert isinstance(queue, Feather)
        made.append(queue.policy)
    printed, agent = made
    assert isinstance(printed, UcbPaper)
    assert printed.exploration == pytest.approx(2**0.5, rel=1e-4)
    assert isinstance(agent, QLearningPaper)
    assert (agent.alpha, agent.gamma, agent.min_epsilon, agent.decay) == (0.1, 0.5, 0.05, 0.999)


def test_default_credit_is_that_of_the_trial() -> None:
    assert FeatherSpec().bandit.credit == FeatherSpec().q_learning.credit == Credit.TRIAL.value
    assert Ucb().credit is QLearning(random.Random(1)).credit is Credit.TRIAL


def test_ageing_bound_is_the_same_in_every_queue() -> None:
    assert FeatherSpec().max_wait_seconds == MAX_WAIT
    assert make_queue("Fcfs", rng=random.Random(1)).max_wait == MAX_WAIT  # type: ignore[attr-defined]
