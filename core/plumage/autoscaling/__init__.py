"""How many replicas a pool should have, and which are deleted first. Pure: figures and clock are arguments."""

from __future__ import annotations

from plumage.autoscaling.autoscaler import Autoscaler, Decision, Reason
from plumage.autoscaling.deletion_cost import DELETION_COST, CacheHotness, coldest_first, deletion_costs
from plumage.autoscaling.judge import CacheJudge
from plumage.autoscaling.observation import STALE, PoolLoad, ReplicaLoad
from plumage.autoscaling.proposals import STEADY_SECONDS, Proposal, judge_of

__all__ = [
    "DELETION_COST",
    "STALE",
    "STEADY_SECONDS",
    "Autoscaler",
    "CacheHotness",
    "CacheJudge",
    "Decision",
    "PoolLoad",
    "Proposal",
    "Reason",
    "ReplicaLoad",
    "coldest_first",
    "deletion_costs",
    "judge_of",
]
