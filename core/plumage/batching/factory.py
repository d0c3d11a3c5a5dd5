"""Queues by the names that manifests and benchmarks use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plumage import defaults
from plumage.batching.base import MAX_WAIT
from plumage.batching.dynamic import DynamicBatching
from plumage.batching.fcfs import Fcfs
from plumage.batching.feather import Feather
from plumage.batching.interface import BatchQueue, StopPolicy, Uniform
from plumage.batching.oracle import Oracle
from plumage.batching.radix import Radix
from plumage.batching.sorted_queue import DfsWeight, Lpm
from plumage.batching.stop import Always, Heuristic, QLearning, Ucb
from plumage.batching.stop.ucb import Discounted, Memory, SlidingWindow
from plumage.batching.tree import CandidateOrder
from plumage.errors import ConfigurationError
from plumage.options import check_options, option_names

__all__ = ["POLICIES", "make_queue", "queue_options"]


def _bandit(
    *,
    exploration: float = float(defaults.EXPLORATION),
    forgetting: str = defaults.FORGETTING,
    discount: float = float(defaults.DISCOUNT),
    discount_interval: int = defaults.DISCOUNT_INTERVAL,
    window: int = defaults.WINDOW,
    credit: str = defaults.CREDIT,
) -> StopPolicy:
    """forgetting: Discounted, SlidingWindow, or None; None with credit Step is the paper's form."""
    memories: dict[str, Callable[[], Memory]] = {
        "Discounted": lambda: Discounted(discount, discount_interval),
        "SlidingWindow": lambda: SlidingWindow(window),
        "None": lambda: Discounted(1.0),
    }
    if forgetting not in memories:
        raise ConfigurationError(f"no forgetting named {forgetting!r}; there are: {', '.join(memories)}")
    return Ucb(exploration=exploration, memory=memories[forgetting](), credit=credit)


_STOP_POLICIES: dict[str, Callable[..., StopPolicy]] = {
    "Bandit": _bandit,
    "QLearning": QLearning,
    "Heuristic": Heuristic,
    "ChtOrder": Always,
}
_QUEUES: dict[str, Callable[..., BatchQueue]] = {
    "Fcfs": Fcfs,
    "Lpm": Lpm,
    "DfsWeight": DfsWeight,
    "Oracle": Oracle,
    "Dynamic": DynamicBatching,
}
POLICIES = (*_STOP_POLICIES, *_QUEUES, "Radix")


def make_queue(
    policy: str,
    *,
    rng: Uniform,
    max_wait: float | None = None,
    order: str = defaults.CANDIDATE_ORDER,
    **options: Any,
) -> BatchQueue:
    """The queue called `policy`. `options` go to the stop policy, or to the queue where it has none; `max_wait` is
    the ageing bound in seconds; `order` is a CandidateOrder, for the queues over the Chunked Hash Tree; Radix takes a
    stop policy's name as `stop`.
    ConfigurationError for an unknown name or option."""
    bound = MAX_WAIT if max_wait is None else max_wait
    if policy in _STOP_POLICIES:
        return Feather(_stop_policy(policy, rng, options), order=_order(order), max_wait=bound)
    if policy == "Radix":
        return Radix(_stop_policy(options.pop("stop", "Heuristic"), rng, options), max_wait=bound)
    if policy in _QUEUES:
        check_options(f"batching policy {policy}", _QUEUES[policy], options, given=("max_wait",))
        return _QUEUES[policy](max_wait=bound, **options)
    raise ConfigurationError(f"no batching policy named {policy!r}; there are: {', '.join(POLICIES)}")


def queue_options(policy: str) -> list[str]:
    """The names of `make_queue`'s options for it; of a policy that there isn't, none."""
    if policy in _QUEUES:
        return option_names(_QUEUES[policy], ("max_wait",))
    own = {"Radix": "stop"}.get(policy, "order")
    stop = _STOP_POLICIES.get("Heuristic" if policy == "Radix" else policy)
    return [] if stop is None else [*option_names(stop, ("rng",)), own]


def _stop_policy(name: str, rng: Uniform, options: dict[str, Any]) -> StopPolicy:
    if not isinstance(name, str) or name not in _STOP_POLICIES:
        raise ConfigurationError(f"no stop policy named {name!r}; there are: {', '.join(_STOP_POLICIES)}")
    make = _STOP_POLICIES[name]
    given = {"rng": rng} if make is QLearning else {}
    check_options(f"stop policy {name}", make, options, given)
    return make(**given, **options)


def _order(name: str) -> CandidateOrder:
    try:
        return CandidateOrder(name)
    except ValueError:
        known = ", ".join(order.value for order in CandidateOrder)
        raise ConfigurationError(f"no candidate order named {name!r}; there are: {known}") from None
