"""Which replica gets a request: LBGR in three forms, and the policies it is measured against, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plumage.errors import ConfigurationError
from plumage.options import check_options, option_names
from plumage.routing.aibrix import AIBrix
from plumage.routing.dynamo import Dynamo
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, RoutingPolicy, Ticket
from plumage.routing.kubeai import KubeAI
from plumage.routing.lbgr import Lbgr, LbgrSettings
from plumage.routing.lbgr_paper import LbgrCode, LbgrPaper
from plumage.routing.llmd import LlmD
from plumage.routing.llmd_weighted import LlmDWeighted
from plumage.routing.production_stack import ProductionStack
from plumage.routing.sglang import SglangCacheAware
from plumage.routing.simple import LeastLoad, PowerOfTwo, PrefixAware, Random, RoundRobin

__all__ = [
    "POLICY_NAMES",
    "Choice",
    "Lbgr",
    "LbgrSettings",
    "Query",
    "Randomness",
    "ReplicaState",
    "RoutingPolicy",
    "Ticket",
    "make_policy",
    "policy_options",
]

_POLICIES: dict[str, Callable[..., RoutingPolicy]] = {
    policy.name: policy
    for policy in (
        Lbgr, LbgrPaper, LbgrCode, PrefixAware, LeastLoad, PowerOfTwo, RoundRobin, Random, LlmD, LlmDWeighted,
        Dynamo, SglangCacheAware, AIBrix, ProductionStack, KubeAI,
    )
}  # fmt: skip

POLICY_NAMES = tuple(_POLICIES)


def make_policy(name: str, *, rng: Randomness, **options: Any) -> RoutingPolicy:
    """The policy called `name` with its own options as keywords; ConfigurationError names what is known."""
    if name not in _POLICIES:
        raise ConfigurationError(f"no routing policy named {name!r}; there are: {', '.join(POLICY_NAMES)}")
    what = f"routing policy {name}"
    if name == Lbgr.name:
        check_options(what, LbgrSettings, options)
        return Lbgr(rng=rng, settings=LbgrSettings(**options))
    check_options(what, _POLICIES[name], options, given=("rng",))
    return _POLICIES[name](rng=rng, **options)


def policy_options(name: str) -> list[str]:
    """The names of `make_policy`'s options for it; of a policy that there isn't, none."""
    if name not in _POLICIES:
        return []
    return option_names(LbgrSettings if name == Lbgr.name else _POLICIES[name], ("rng",))
