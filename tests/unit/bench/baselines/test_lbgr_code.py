"""LBGR as its authors' code runs it, and its differences from our reconstruction of the printed form."""

from __future__ import annotations

import random

import pytest

from plumage.routing import Query, ReplicaState
from plumage.routing.lbgr_paper import LbgrPaper
from plumage_bench.baselines.routing.lbgr_code import LbgrCode


def _states(count: int) -> list[ReplicaState]:
    return [ReplicaState(slot) for slot in range(count)]


def test_printed_form_corrects_an_over_estimate_and_the_code_does_not() -> None:
    for policy, corrected in ((LbgrPaper(rng=random.Random(1)), True), (LbgrCode(rng=random.Random(1)), False)):
        for step in range(200):
            query = Query(10.0 * step, 1000, {}, (step,))
            ticket = policy.routed(query, policy.choose(query, _states(1)))
            policy.finished(ticket, query.now + 0.05, None)
        score = policy.choose(Query(1e4, 1000, {}, (-1,)), _states(1)).scores[0]
        assert (score < 0.2) is corrected


def test_code_gives_ties_to_the_first_replica_and_the_printed_form_does_not() -> None:
    code = [LbgrCode(rng=random.Random(n)).choose(Query(0.0, 1000, {}), _states(4)).slot for n in range(30)]
    printed = [LbgrPaper(rng=random.Random(n)).choose(Query(0.0, 1000, {}), _states(4)).slot for n in range(30)]
    assert set(code) == {0}
    assert len(set(printed)) > 1


def test_code_counts_characters_of_its_own_tree() -> None:
    policy = LbgrCode(rng=random.Random(1), chunk_characters=256)
    chunks = tuple(range(10))
    query = Query(0.0, 640, {1: 640.0}, chunks, b"x" * 2560)
    policy.routed(query, policy.choose(query, _states(2)))
    later = policy.choose(Query(5.0, 640, {1: 640.0}, chunks, b"x" * 2560), _states(2))
    assert later.slot == 0, "it uses its own past choices, not the directory"
    assert later.scores[1] == pytest.approx(2.56)
