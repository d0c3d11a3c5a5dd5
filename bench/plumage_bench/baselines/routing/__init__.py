"""Other products' routing policies, and LBGR as in its authors' code, by their short names."""

from __future__ import annotations

from typing import Any, Final

from plumage import routing
from plumage.routing import Randomness, RoutingPolicy
from plumage_bench.baselines.named import NamedBaselines

__all__ = ["POLICY_NAMES", "make_policy", "path"]

_BASELINES: Final = NamedBaselines(
    __name__,
    {
        "LbgrCode": "lbgr_code:LbgrCode",
        "LlmD": "llmd:LlmD",
        "LlmDWeighted": "llmd_weighted:LlmDWeighted",
        "Dynamo": "dynamo:Dynamo",
        "SglangCacheAware": "sglang:SglangCacheAware",
        "AIBrix": "aibrix:AIBrix",
        "ProductionStack": "production_stack:ProductionStack",
        "KubeAI": "kubeai:KubeAI",
    },
)
POLICY_NAMES: Final = (*routing.POLICY_NAMES, *_BASELINES.names)
"""Names of the product's policies and the baselines."""
path: Final = _BASELINES.path


def make_policy(name: str, *, rng: Randomness, **options: Any) -> RoutingPolicy:
    """The policy `name` of the product or of a baseline, made by the product's own function."""
    return routing.make_policy(path(name), rng=rng, **options)
