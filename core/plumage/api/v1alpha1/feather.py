"""`spec.engine.feather`: how an engine forms its batches (FEATHER, §4).

The papers' parameters are fields with the papers' values as defaults; where the paper names a parameter without a
value, the default is the one that the benchmarks settled on.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plumage.api.v1alpha1.fields import Fraction, PositiveNumber, Seconds
from plumage.api.v1alpha1.quantity import Quantity
from plumage.api.v1alpha1.struct import Rule, Struct

__all__ = ["BanditSpec", "FeatherSpec", "HeuristicSpec", "QLearningSpec"]

Levels = Annotated[int, Field(ge=0, le=100_000)]
Requests = Annotated[int, Field(ge=1, le=100_000)]
Credit = Literal["Trial", "Step"]


class HeuristicSpec(Struct):
    """The fixed rule: no loss → add; small batch → tolerate more; else loss up to a bound, relaxed when many wait."""

    loss_threshold: Levels = Field(5, description="Levels of shared prefix that one more request may cost.")
    relaxed_loss_threshold: Levels = Field(7, description="The same when many peers wait at the depth after it.")
    relaxed_peers: Requests = Field(10, description="Waiting peers from which the relaxed threshold counts.")
    max_batch_floor: Requests = Field(10, description="Highest batch size below which every request is added.")
    rules: ClassVar = (
        Rule(
            at="relaxedLossThreshold",
            must="must be at least lossThreshold",
            cel="self.relaxedLossThreshold >= self.lossThreshold",
            reads=("loss_threshold", "relaxed_loss_threshold"),
            holds=lambda spec: spec.relaxed_loss_threshold >= spec.loss_threshold,
        ),
    )


class BanditSpec(Struct):
    """UCB over (batch, loss, peers): argmax μ/n + c·√(ln S / n), on rewards relative to the best mean (§4.3.3)."""

    exploration: PositiveNumber = Field(
        Quantity("0.05"),
        description="c: how far one trial is taken to be off, relative to the best mean, until trials tell.",
    )
    forgetting: Literal["Discounted", "SlidingWindow", "None"] = Field(
        "Discounted", description="How old decisions lose weight when the workload drifts; None is the paper's form."
    )
    discount: Fraction = Field(Quantity("0.9"), description="Factor on what was learned, once a discountInterval.")
    discount_interval: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        64, description="Credits between two discounts: one for each state that a trial came to."
    )
    window: Annotated[int, Field(ge=10, le=1_000_000)] = Field(
        512, description="Credits that a sliding window remembers."
    )
    credit: Credit = Field(
        "Trial",
        description="What a decision is judged by: Trial, the throughput until the batch has turned over; Step, that "
        "of the next step, the paper's form.",
    )


class QLearningSpec(Struct):
    """Tabular Q-learning (§4.3.4); an episode is a trial, in which a choice is held for two lives of a request, or one
    step."""

    learning_rate: Fraction = Field(Quantity("0.1"), description="α: weight of a new outcome.")
    discount_factor: Fraction = Field(Quantity("0.9"), description="γ: weight of the decisions that follow.")
    minimum_exploration: Fraction = Field(Quantity("0.05"), description="ε_min: random trials that always remain.")
    exploration_decay: Fraction = Field(
        Quantity("0.8"),
        description="Factor on ε, from 1.0, after each episode; with credit Step one near 1, as 0.999.",
    )
    credit: Credit = Field(
        "Trial",
        description="What an episode is: Trial, until the batch has turned over; Step, the decisions before one step, "
        "with the paper's r + γ·max Q.",
    )


class FeatherSpec(Struct):
    """Batching by shared prefix."""

    policy: Literal["Bandit", "QLearning", "Heuristic", "ChtOrder", "Fcfs"] = Field(
        "Bandit",
        description="Who decides when a batch is closed. ChtOrder orders by prefix and never stops; Fcfs is stock.",
    )
    chunk_tokens: Annotated[int, Field(ge=1, le=4096)] = Field(
        64, description="Tokens in one level of the Chunked Hash Tree."
    )
    candidate_order: Literal["TipLoss", "Paper"] = Field(
        "TipLoss",
        description="Best candidate first by loss of the shared tip, safe for unequal lengths; or the paper's.",
    )
    max_wait_seconds: Seconds = Field(10, description="A request that waited this long is next, whatever is learned.")
    order_batch: bool = Field(
        False,
        description="Sort the running batch by prefix, so that requests that share one are read side by side. Of the "
        "modelled devices only CPU gains by it.",
    )
    heuristic: HeuristicSpec = Field(HeuristicSpec(), description="Settings of the Heuristic policy.")
    bandit: BanditSpec = Field(BanditSpec(), description="Settings of the Bandit policy.")
    q_learning: QLearningSpec = Field(QLearningSpec(), description="Settings of the QLearning policy.")
