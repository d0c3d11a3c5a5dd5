"""What a container asks for: what a manifest names, and defaults for the rest. Pure.

Every container has requests, and a limit of memory; no default limits CPU, since a throttled router or engine answers
late for no gain. Each has a field that names all of them, so that a pool meets any ResourceQuota.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from plumage.api.v1alpha1 import Quantity
from plumage.api.v1alpha1.pods import Resources
from plumage.api.v1alpha1.router import RouterLimits
from plumage.settings import ROUTER_MEMORY

__all__ = ["AGENT", "FETCH", "MIB", "SIMULATOR", "Defaults", "filled", "router_defaults"]

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Defaults:
    """cpu, memory: requests, as Kubernetes writes them. most: the limit of memory."""

    cpu: str
    memory: str
    most: str


# The agent's index grows with the engine's cache, up to a bound; 0067 has its CPU.
AGENT: Final = Defaults("50m", "192Mi", "1Gi")
FETCH: Final = Defaults("50m", "256Mi", "2Gi")  # what it writes counts until it is on the disk
SIMULATOR: Final = Defaults("100m", "192Mi", "1Gi")
_ROUTER_MOST: Final = "1Gi"


def router_defaults(limits: RouterLimits) -> Defaults:
    """Of a router, by the request bodies that it may hold: without resources they get a quarter of its memory, so four
    times the memory that is named for them is asked for."""
    asked = Quantity(ROUTER_MEMORY)
    if limits.body_memory is not None and 4 * limits.body_memory.value > asked.value:
        asked = Quantity(4 * int(limits.body_memory))
    most = Quantity(_ROUTER_MOST)
    return Defaults("100m", str(asked), str(most if asked.value <= most.value else asked))


def filled(given: Resources, defaults: Defaults) -> dict[str, dict[str, str]]:
    """`resources` of a container. A default request is at most the limit that is named, and the default limit at least
    the request that is named: a pod with a request above its limit is refused."""
    requests = {name: _least(amount, given.limits.get(name)) for name, amount in _requests(defaults).items()}
    named = given.requests.get("memory")
    most = Quantity(defaults.most)
    limits = {"memory": str(most if named is None or named.value <= most.value else named)}
    return {
        "requests": {**requests, **_written(given.requests)},
        "limits": {**limits, **_written(given.limits)},
    }


def _requests(defaults: Defaults) -> dict[str, Quantity]:
    return {"cpu": Quantity(defaults.cpu), "memory": Quantity(defaults.memory)}


def _least(amount: Quantity, limit: Quantity | None) -> str:
    return str(amount if limit is None or amount.value <= limit.value else limit)


def _written(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}
