"""Other products' routing policies, and LBGR as its authors' code runs it, by their short names."""

from __future__ import annotations

from typing import Any, Final

from plumage import routing
from plumage.routing import Randomness, RoutingPolicy

__all__ = ["BASELINE_NAMES", "POLICY_NAMES", "make_policy", "path"]

_HERE: Final = __name__
_PATHS: Final = {
    "LbgrCode": f"{_HERE}.lbgr_code:LbgrCode",
    "LlmD": f"{_HERE}.llmd:LlmD",
    "LlmDWeighted": f"{_HERE}.llmd_weighted:LlmDWeighted",
    "Dynamo": f"{_HERE}.dynamo:Dynamo",
    "SglangCacheAware": f"{_HERE}.sglang:SglangCacheAware",
    "AIBrix": f"{_HERE}.aibrix:AIBrix",
    "ProductionStack": f"{_HERE}.production_stack:ProductionStack",
    "KubeAI": f"{_HERE}.kubeai:KubeAI",
}
BASELINE_NAMES: Final = tuple(_PATHS)
POLICY_NAMES: Final = (*routing.POLICY_NAMES, *_PATHS)
"""The product's and the baselines'."""


def path(name: str) -> str:
    """What settings say for the policy called `name`: the product's names as they are, a baseline's import path."""
    return _PATHS.get(name, name)


def make_policy(name: str, *, rng: Randomness, **options: Any) -> RoutingPolicy:
    """The policy called `name`, of the product or a baseline, made by the product's own function."""
    return routing.make_policy(path(name), rng=rng, **options)
