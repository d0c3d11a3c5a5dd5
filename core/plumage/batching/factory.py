"""Queues by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from plumage import defaults
from plumage.batching.base import MAX_WAIT, Fcfs
from plumage.batching.feather import Feather
from plumage.batching.interface import BatchQueue, StopPolicy
from plumage.batching.stop import Always, Heuristic, Predictive, QLearning, QLearningPaper, Ucb, UcbPaper
from plumage.batching.stop.ucb import Discounted, Memory, SlidingWindow
from plumage.batching.tree import CandidateOrder
from plumage.errors import ConfigurationError
from plumage.import_path import is_import_path, load_class
from plumage.options import check_options, option_names
from plumage.randomness import Randomness

__all__ = ["POLICIES", "make_queue", "make_stop_policy", "queue_options"]


def _bandit(
    *,
    exploration: float = float(defaults.EXPLORATION),
    forgetting: str = defaults.FORGETTING,
    discount: float = float(defaults.DISCOUNT),
    discount_interval: int = defaults.DISCOUNT_INTERVAL,
    window: int = defaults.WINDOW,
    credit: str = defaults.CREDIT,
) -> StopPolicy:
    """forgetting: Discounted, SlidingWindow, or None. `BanditPaper` is the printed form."""
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
    "BanditPaper": UcbPaper,
    "QLearning": QLearning,
    "QLearningPaper": QLearningPaper,
    "Heuristic": Heuristic,
    "Predictive": Predictive,
    "ChtOrder": Always,
}
_STOP_METHODS = ("decide", "observe")
_QUEUE_METHODS = ("insert", "select", "add", "finish", "remove", "requeue", "observe")
POLICIES = (*_STOP_POLICIES, "Fcfs")
"""The product's own."""


def make_queue(
    policy: str,
    *,
    rng: Randomness,
    max_wait: float | None = None,
    order: str = defaults.CANDIDATE_ORDER,
    **options: Any,
) -> BatchQueue:
    """Makes the queue called `policy`. Raises ConfigurationError for an unknown name or option.

    policy: one of `POLICIES`, or "package.module:Class" for a class of your own. One with `decide` is a stop policy
        over the Chunked Hash Tree, any other a whole queue. It gets `rng` and, if it is a queue, `max_wait`, if its
        constructor has parameters of these names.
    max_wait: the ageing bound in seconds.
    order: a CandidateOrder, for the queues over the Chunked Hash Tree.
    options: of the stop policy, or of the queue where it has none.
    """
    bound = MAX_WAIT if max_wait is None else max_wait
    if policy == "Fcfs":
        check_options("batching policy Fcfs", Fcfs, options, given=("max_wait",))
        return Fcfs(max_wait=bound, **options)
    make = _find(policy)
    if not _is_queue(make):
        return Feather(make_stop_policy(policy, rng, options), order=_order(order), max_wait=bound)
    queue: BatchQueue = _make(f"batching policy {policy}", make, options, {"rng": rng, "max_wait": bound})
    return queue


def make_stop_policy(name: str, rng: Randomness, options: Mapping[str, Any]) -> StopPolicy:
    """The stop policy called `name`: of the product, or "package.module:Class". ConfigurationError otherwise."""
    if not isinstance(name, str) or not (name in _STOP_POLICIES or is_import_path(name)):
        known = ", ".join(_STOP_POLICIES)
        raise ConfigurationError(f"no stop policy named {name!r}; there are: {known}, and package.module:Class")
    policy: StopPolicy = _make(f"stop policy {name}", _find(name), options, {"rng": rng})
    return policy


def queue_options(policy: str) -> list[str]:
    """The names of `make_queue`'s options for it; of a policy that there isn't, none."""
    if policy not in POLICIES and not is_import_path(policy):
        return []
    make = Fcfs if policy == "Fcfs" else _find(policy)
    names = option_names(make, ("rng", "max_wait"))
    return names if _is_queue(make) else [*names, "order"]


def _find(policy: str) -> Callable[..., Any]:
    if policy in _STOP_POLICIES:
        return _STOP_POLICIES[policy]
    if not is_import_path(policy):
        raise ConfigurationError(
            f"no batching policy named {policy!r}; there are: {', '.join(POLICIES)}, and package.module:Class"
        )
    own = load_class(policy, "batching policy", ("observe",))
    return load_class(policy, "batching policy", _QUEUE_METHODS if _is_queue(own) else _STOP_METHODS)


def _is_queue(make: Callable[..., Any]) -> bool:
    return inspect.isclass(make) and hasattr(make, "select")


def _make(what: str, make: Callable[..., Any], options: Mapping[str, Any], ours: Mapping[str, Any]) -> Any:
    """ours: what the caller fills in itself, where `make` has a parameter of that name."""
    given = {name: value for name, value in ours.items() if name in option_names(make)}
    check_options(what, make, options, given)
    return make(**given, **options)


def _order(name: str) -> CandidateOrder:
    try:
        return CandidateOrder(name)
    except ValueError:
        known = ", ".join(order.value for order in CandidateOrder)
        raise ConfigurationError(f"no candidate order named {name!r}; there are: {known}") from None
