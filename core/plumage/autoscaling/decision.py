"""What the autoscaler decided, in a form that can be acted on, and in words with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from plumage.api.v1alpha1.autoscaling import AutoscalingStatus, MetricStatus
from plumage.autoscaling.proposals import Proposal

__all__ = ["Decision", "Reason"]

Reason = Literal[
    "ScaledUp",
    "ScaledDown",
    "Woken",
    "FellAsleep",
    "AtTarget",
    "AtMaximum",
    "AtMinimum",
    "Asleep",
    "Stabilized",
    "RateLimited",
    "MetricMissing",
    "ReplicaWarming",
    "DryRun",
]
_LONGEST = 4096  # characters of status.autoscaling.decision
_LONGEST_WHY = 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """wanted: replicas before it. replicas: what is wanted from now on; the same number in a dry run and on hold.
    advised: what would be wanted if it were no dry run. reason: a stable word, for events and conditions."""

    wanted: int
    replicas: int
    advised: int
    reason: Reason
    message: str
    proposals: Sequence[Proposal] = ()

    @property
    def changes(self) -> bool:
        return self.replicas != self.wanted

    def status(self, last_scale_time: str | None) -> AutoscalingStatus:
        """As the pool's status tells it."""
        return AutoscalingStatus(
            decision=self.message[:_LONGEST],
            wantedReplicas=self.advised,
            lastScaleTime=last_scale_time,
            metrics=tuple(_metric(proposal) for proposal in self.proposals),
        )


def _metric(proposal: Proposal) -> MetricStatus:
    return MetricStatus(
        type=proposal.metric,
        current=None if proposal.value is None else ceil(proposal.value),
        target=proposal.target,
        proposedReplicas=proposal.replicas,
        message=proposal.why[:_LONGEST_WHY],
    )
