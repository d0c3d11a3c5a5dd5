"""The autoscaler's decision: replicas, reason, and a message with the numbers."""

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
_LONGEST_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """wanted: replicas before the decision. replicas: from now on; equal to `wanted` in a dry run and on hold.
    advised: `replicas` as it would be without a dry run. reason: the enumerated cause, for events and conditions."""

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
        """The decision in the form of the pool's status."""
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
        message=proposal.message[:_LONGEST_MESSAGE],
    )
