"""The contract of every routing policy, of the product and of the baselines."""

from __future__ import annotations

import random

import pytest
from support.routing_policies import prompt, send

from plumage.routing import Query, ReplicaState
from plumage_bench.baselines.routing import POLICY_NAMES, make_policy

EVERY = pytest.mark.parametrize("name", POLICY_NAMES)


@EVERY
def test_every_policy_handles_a_request_and_a_lost_replica(name: str) -> None:
    policy = make_policy(name, rng=random.Random(7))
    replicas = [ReplicaState(3), ReplicaState(17)]
    for step in range(50):
        query = Query(float(step), 1000.0, {3: 256.0}, (1, 2, step), b"hello")
        choice = policy.choose(query, replicas)
        assert choice.slot in (3, 17)
        assert not choice.scores or len(choice.scores) == len(choice.considered or replicas)
        ticket = policy.routed(query, choice)
        assert (ticket.slot, ticket.tokens) == (choice.slot, 1000.0)
        policy.first_token(ticket, step + 0.1)
        if step % 2:
            policy.finished(ticket, step + 0.2, 256.0)
        else:
            policy.failed(ticket, step + 0.2)
        if step == 25:
            policy.forget(17)
    policy.forget(99)


@EVERY
def test_one_replica_gets_everything(name: str) -> None:
    policy = make_policy(name, rng=random.Random(7))
    assert {send(policy, prompt(1, 2, 3), [ReplicaState(5)]) for _ in range(10)} == {5}
