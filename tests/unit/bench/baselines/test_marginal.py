"""The baseline that stops while the batch decodes faster than mixed ones."""

from __future__ import annotations

from plumage.batching.interface import BatchShape, BatchState, Decision, StepOutcome
from plumage_bench.baselines.batching.marginal import Marginal

ALIKE, MIXED = BatchShape(8, 8 * 64, 64, 64), BatchShape(8, 8 * 64, 8 * 64, 0)
STRANGER = BatchState(batch=8, loss=64, depth=64, peers=0, siblings=5, sibling_gain=64)


def run(policy: Marginal, shape: BatchShape, seconds: float, steps: int) -> None:
    for _ in range(steps):
        policy.observe(StepOutcome(seconds, shape.requests, shape=shape))


def trained(seconds: float) -> Marginal:
    """Mixed batches of eight took two seconds a step; then a batch of one group took so many."""
    policy = Marginal()
    run(policy, MIXED, 2.0, 40)
    assert policy.decide(STRANGER) is Decision.STOP, "it has become alike, and its rate is not known"
    run(policy, ALIKE, seconds, 4)
    return policy


def test_it_stops_while_the_batch_is_faster_than_mixed_ones() -> None:
    assert trained(1.0).decide(STRANGER) is Decision.STOP
    assert trained(2.0).decide(STRANGER) is Decision.ADD


def test_batch_that_drains_slows_down_until_it_adds() -> None:
    policy = trained(1.0)
    run(policy, BatchShape(3, 3 * 64, 64, 64), 1.0, 30)  # three tokens a second, and mixed ones have four
    assert policy.decide(STRANGER) is Decision.ADD


def test_without_siblings_or_before_it_knows_mixed_batches_it_adds() -> None:
    assert trained(1.0).decide(STRANGER._replace(siblings=0)) is Decision.ADD
    assert Marginal().decide(STRANGER) is Decision.ADD
