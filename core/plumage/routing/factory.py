"""Routing policies by name: the product's own, and classes of yours by import path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plumage.errors import ConfigurationError
from plumage.import_path import is_import_path, load_class, require_attribute
from plumage.options import check_options, option_names
from plumage.routing.interface import Randomness, RoutingPolicy
from plumage.routing.lbgr import Lbgr
from plumage.routing.lbgr_paper import LbgrPaper
from plumage.routing.lbgr_settings import LbgrSettings
from plumage.routing.load_policies import LeastLoad, PowerOfTwo, PrefixAware, Random, RoundRobin

__all__ = ["POLICY_NAMES", "make_policy", "policy_options"]

_POLICIES: dict[str, Callable[..., RoutingPolicy]] = {
    policy.name: policy for policy in (Lbgr, LbgrPaper, PrefixAware, LeastLoad, PowerOfTwo, RoundRobin, Random)
}
_METHODS = ("choose", "routed", "first_token", "finished", "failed", "forget")

POLICY_NAMES = tuple(_POLICIES)
"""The product's own."""


def make_policy(name: str, *, rng: Randomness, **options: Any) -> RoutingPolicy:
    """The policy with this name. ConfigurationError lists the known names or options.

    name: one of `POLICY_NAMES`, or "package.module:Class" for a policy of your own.
    rng: seeded by the caller. A class of your own gets it if its constructor has a parameter of that name.
    options: keywords of the policy's constructor.
    """
    policy = _find(name)
    what = f"routing policy {name}"
    if policy is Lbgr:
        check_options(what, LbgrSettings, options)
        return Lbgr(rng=rng, settings=LbgrSettings(**options))
    given = {"rng": rng} if "rng" in option_names(policy) else {}
    check_options(what, policy, options, given)
    try:
        made = policy(**given, **options)
    except TypeError as error:
        if "inherit from compiled" not in str(error):
            raise
        raise ConfigurationError(
            f"{what} derives from a class that is compiled here: derive from plumage.routing.base.ScoringPolicy, or "
            "from no class of Plumage (docs/how-to/own-policy.md)"
        ) from error
    require_attribute(made, what, "name", str)
    return made


def policy_options(name: str) -> list[str]:
    """The names of the policy's options; empty for an unknown policy."""
    if name not in _POLICIES and not is_import_path(name):
        return []
    policy = _find(name)
    return option_names(LbgrSettings if policy is Lbgr else policy, ("rng",))


def _find(name: str) -> Callable[..., RoutingPolicy]:
    if is_import_path(name):
        return load_class(name, "routing policy", _METHODS)
    if name not in _POLICIES:
        raise ConfigurationError(
            f"no routing policy named {name!r}; there are: {', '.join(POLICY_NAMES)}, and package.module:Class"
        )
    return _POLICIES[name]
