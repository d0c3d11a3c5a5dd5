"""`spec.engine.feather`: how an engine forms its batches (FEATHER, §4).

The papers' parameters are fields with the papers' values as defaults; where the paper names a parameter without a
value, the default is the one that the benchmarks settled on.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plumage import defaults
from plumage.api.v1alpha1.field_types import Fraction, PositiveNumber, Seconds
from plumage.api.v1alpha1.quantity import Quantity
from plumage.api.v1alpha1.struct import Rule, Struct

__all__ = ["BanditSpec", "FeatherSpec", "HeuristicSpec", "QLearningSpec"]

Levels = Annotated[int, Field(ge=0, le=100_000)]
Requests = Annotated[int, Field(ge=1, le=100_000)]
Credit = Literal["Trial", "Step"]


class HeuristicSpec(Struct):
    """The fixed rule: no loss → add; small batch → tolerate more; else loss up to a bound, relaxed when many wait."""

    loss_threshold: Levels = Field(
        defaults.LOSS_THRESHOLD, description="Levels of shared prefix that one more request may cost."
    )
    relaxed_loss_threshold: Levels = Field(
        defaults.RELAXED_LOSS_THRESHOLD, description="The same when many peers wait at the depth after it."
    )
    relaxed_peers: Requests = Field(
        defaults.RELAXED_PEERS, description="Waiting peers from which the relaxed threshold counts."
    )
    max_batch_floor: Requests = Field(
        defaults.MAX_BATCH_FLOOR, description="Highest batch size below which every request is added."
    )
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
        Quantity(defaults.EXPLORATION),
        description="c: assumed error of one trial, relative to the best mean, until there are enough trials.",
    )
    forgetting: Literal["Discounted", "SlidingWindow", "None"] = Field(
        defaults.FORGETTING,
        description="How old decisions lose weight when the workload drifts; None is the paper's form.",
    )
    discount: Fraction = Field(
        Quantity(defaults.DISCOUNT), description="Factor on all learned rewards, applied every discountInterval."
    )
    discount_interval: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        defaults.DISCOUNT_INTERVAL,
        description="Credits between two discounts: one for each state that a trial came to.",
    )
    window: Annotated[int, Field(ge=10, le=1_000_000)] = Field(
        defaults.WINDOW, description="Credits that a sliding window remembers."
    )
    credit: Credit = Field(
        defaults.CREDIT,
        description="How a decision is rewarded: Trial, the throughput until the batch has turned over; Step, that "
        "of the next step, the paper's form.",
    )


class QLearningSpec(Struct):
    """Tabular Q-learning (§4.3.4); an episode is a trial, in which a choice is held for two lives of a request, or one
    step."""

    learning_rate: Fraction = Field(Quantity(defaults.LEARNING_RATE), description="α: weight of a new outcome.")
    discount_factor: Fraction = Field(
        Quantity(defaults.DISCOUNT_FACTOR), description="γ: weight of the decisions that follow."
    )
    minimum_exploration: Fraction = Field(
        Quantity(defaults.MINIMUM_EXPLORATION), description="ε_min: random trials that always remain."
    )
    exploration_decay: Fraction = Field(
        Quantity(defaults.EXPLORATION_DECAY),
        description="Factor on ε, from 1.0, after each episode; with credit Step one near 1, as 0.999.",
    )
    credit: Credit = Field(
        defaults.CREDIT,
        description="What an episode is: Trial, until the batch has turned over; Step, the decisions before one step, "
        "with the paper's r + γ·max Q.",
    )


class FeatherSpec(Struct):
    """Batching by shared prefix."""

    policy: Literal["Bandit", "QLearning", "Heuristic", "ChtOrder", "Fcfs"] = Field(
        defaults.FEATHER_POLICY,
        description="Which policy decides when a batch is closed. ChtOrder orders by prefix and never stops; Bandit, "
        "QLearning and Heuristic also decide when to stop; Fcfs is vLLM's own order. docs/how-to/tune.md has what each "
        "gained and cost.",
    )
    chunk_tokens: Annotated[int, Field(ge=1, le=4096)] = Field(
        defaults.CHUNK_TOKENS, description="Tokens in one level of the Chunked Hash Tree."
    )
    candidate_order: Literal["TipLoss", "Paper"] = Field(
        defaults.CANDIDATE_ORDER,
        description="Best candidate first by loss of the shared tip, safe for unequal lengths; or the paper's.",
    )
    max_wait_seconds: Seconds = Field(
        defaults.MAX_WAIT_SECONDS, description="A request that waited this long is next, whatever is learned."
    )
    order_batch: bool = Field(
        defaults.ORDER_BATCH,
        description="Sort the running batch by prefix, so that requests that share one are read side by side. Of the "
        "modelled devices only CPU gains by it.",
    )
    heuristic: HeuristicSpec = Field(HeuristicSpec(), description="Settings of the Heuristic policy.")
    bandit: BanditSpec = Field(BanditSpec(), description="Settings of the Bandit policy.")
    q_learning: QLearningSpec = Field(QLearningSpec(), description="Settings of the QLearning policy.")
