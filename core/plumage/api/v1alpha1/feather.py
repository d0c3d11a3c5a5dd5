"""`spec.engine.feather`: how an engine forms its batches (FEATHER, §4).

The paper's parameters are fields, with the paper's values as defaults. If the paper gives no value, the default comes
from the benchmarks.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plumage import defaults
from plumage.api.v1alpha1.field_types import Fraction, PositiveNumber, Seconds
from plumage.api.v1alpha1.struct import Rule, Struct
from plumage.quantity import Quantity

__all__ = ["BanditSpec", "FeatherSpec", "HeuristicSpec", "QLearningSpec"]

Levels = Annotated[int, Field(ge=0, le=100_000)]
Requests = Annotated[int, Field(ge=1, le=100_000)]
Credit = Literal["Trial", "Step"]
Form = Literal["Adaptive", "Paper"]


class HeuristicSpec(Struct):
    """The fixed rule. A request is added without loss, to a small batch, or with a loss up to a bound. The bound is
    higher if many requests wait."""

    loss_threshold: Levels = Field(
        defaults.LOSS_THRESHOLD, description="Levels of shared prefix that one more request may cost."
    )
    relaxed_loss_threshold: Levels = Field(
        defaults.RELAXED_LOSS_THRESHOLD,
        description="The same if relaxedPeers requests wait with the prefix that is then left.",
    )
    relaxed_peers: Requests = Field(
        defaults.RELAXED_PEERS, description="Waiting requests with that prefix for which the relaxed threshold counts."
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

    form: Form = Field(
        defaults.STOP_FORM,
        description="Adaptive is Plumage's. Paper is the bandit as printed in FEATHER: asked at every candidate, "
        "judged by the next step, it forgets nothing and is not shared. It has no further settings. For comparison.",
    )
    exploration: PositiveNumber = Field(
        Quantity(defaults.EXPLORATION),
        description="c: the assumed error of one trial, relative to the best mean, until there are enough trials. Only "
        "for form Adaptive; form Paper has √2.",
    )
    forgetting: Literal["Discounted", "SlidingWindow", "None"] = Field(
        defaults.FORGETTING,
        description="How old decisions lose weight, for a workload that changes. Only for form Adaptive.",
    )
    discount: Fraction = Field(
        Quantity(defaults.DISCOUNT), description="Factor on all learned rewards, applied every discountInterval."
    )
    discount_interval: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        defaults.DISCOUNT_INTERVAL,
        description="Credits between two discounts. A trial gives one credit to each state that it reached.",
    )
    window: Annotated[int, Field(ge=10, le=1_000_000)] = Field(
        defaults.WINDOW, description="Credits in a sliding window."
    )
    credit: Credit = Field(
        defaults.CREDIT,
        description="The reward of a decision. Trial: the throughput until all requests of the batch were replaced. "
        "Step: the throughput of the next step, as in the paper. Only for form Adaptive.",
    )


class QLearningSpec(Struct):
    """Tabular Q-learning (§4.3.4). An episode is a trial, which keeps a choice for twice the duration of a request, or
    one step."""

    form: Form = Field(
        defaults.STOP_FORM,
        description="Adaptive is Plumage's. Paper is the agent as printed in FEATHER: asked at every candidate, one "
        "episode a batch, and not shared. For comparison.",
    )
    learning_rate: Fraction = Field(Quantity(defaults.LEARNING_RATE), description="α: weight of a new outcome.")
    discount_factor: Fraction = Field(
        Quantity(defaults.DISCOUNT_FACTOR), description="γ: weight of the decisions that follow."
    )
    minimum_exploration: Fraction = Field(
        Quantity(defaults.MINIMUM_EXPLORATION), description="ε_min: the least share of random trials."
    )
    exploration_decay: Fraction = Field(
        Quantity(defaults.EXPLORATION_DECAY),
        description="Factor on ε after each episode; ε begins at 1.0. With credit Step use a factor near 1, as 0.999. "
        "Only for form Adaptive; form Paper has 0.999.",
    )
    credit: Credit = Field(
        defaults.CREDIT,
        description="An episode. Trial: until all requests of the batch were replaced. Step: the decisions before one "
        "step, with the paper's r + γ·max Q. Only for form Adaptive.",
    )


class FeatherSpec(Struct):
    """Batching by shared prefix."""

    policy: Literal["Bandit", "QLearning", "Heuristic", "Predictive", "ChtOrder", "Fcfs"] = Field(
        defaults.FEATHER_POLICY,
        description="Which policy decides when a batch is closed. ChtOrder orders by prefix and never stops. Bandit, "
        "QLearning, Heuristic and Predictive also decide when to stop. Fcfs is vLLM's order. docs/how-to/tune.md lists "
        "their gains and costs.",
    )
    chunk_tokens: Annotated[int, Field(ge=1, le=4096)] = Field(
        defaults.CHUNK_TOKENS, description="Tokens in one level of the Chunked Hash Tree."
    )
    candidate_order: Literal["TipLoss", "Paper"] = Field(
        defaults.CANDIDATE_ORDER,
        description="Order of candidates. TipLoss: the least loss of the shared tip first, for prompts of unequal "
        "lengths. Paper: the paper's order.",
    )
    max_wait_seconds: Seconds = Field(
        defaults.MAX_WAIT_SECONDS,
        description="Seconds after which a waiting request is overdue. Overdue ones are next, whatever the policy "
        "chooses: first those that share a prefix with the running batch, then the oldest and others that share its "
        "prefix. Each group has eight batches at most.",
    )
    order_batch: bool = Field(
        defaults.ORDER_BATCH,
        description="Sort the running batch by prefix, so that requests with one prefix are read together. It gained "
        "with policy Fcfs on a CPU: ChtOrder has nearly sorted the batch.",
    )
    heuristic: HeuristicSpec = Field(HeuristicSpec(), description="Settings of the Heuristic policy.")
    bandit: BanditSpec = Field(BanditSpec(), description="Settings of the Bandit policy.")
    q_learning: QLearningSpec = Field(QLearningSpec(), description="Settings of the QLearning policy.")
