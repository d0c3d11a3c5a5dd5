"""The tiers GPU, host memory and disk: which blocks are admitted to host memory, which are promoted, and where a node
belongs."""

from __future__ import annotations

from plumage.tiering.admission import AdmissionPlan, LeastUses, plan_admission
from plumage.tiering.decision import Pressure, Tier, decide_tier
from plumage.tiering.host import HostTier
from plumage.tiering.node import TierNode
from plumage.tiering.promotion import Promotion, PromotionBudget, PromotionTurn, plan_promotion
from plumage.tiering.worth import PromotionWorth

__all__ = [
    "AdmissionPlan", "HostTier", "LeastUses", "Pressure", "Promotion", "PromotionBudget", "PromotionTurn",
    "PromotionWorth", "Tier", "TierNode", "decide_tier", "plan_admission", "plan_promotion",
]  # fmt: skip
