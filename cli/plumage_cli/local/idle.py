"""Settings of parts that the manifest does not choose: right, and without effect until it does. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic.alias_generators import to_camel

from plumage.api.v1alpha1 import InferencePool
from plumage.settings.policies import ranks_by_hotness
from plumage_cli.local.plan import is_set

__all__ = ["idle"]


def idle(pool: InferencePool) -> list[str]:
    """The fields that the manifest sets for a policy, form or tier that it does not use."""
    paths = [path for path, used in _USED_WHERE.items() if is_set(pool.spec, path.split(".")) and not used(pool.spec)]
    whole = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
    return [".".join(["spec", *map(to_camel, path.split("."))]) for path in whole]


def _feather(*policies: str) -> Callable[[Any], bool]:
    return lambda spec: spec.engine.feather.policy in policies


def _routing(*policies: str) -> Callable[[Any], bool]:
    return lambda spec: spec.router.policy in policies


def _forgetting(form: str) -> Callable[[Any], bool]:
    return lambda spec: spec.engine.feather.policy == "Bandit" and spec.engine.feather.bandit.forgetting == form


# By their Python names. A test changes every field of the manifest under every policy: what has no effect is here.
_USED_WHERE: dict[str, Callable[[Any], bool]] = {
    "engine.feather.candidate_order": _feather("Bandit", "QLearning", "Heuristic", "ChtOrder"),
    "engine.feather.heuristic": _feather("Heuristic"),
    "engine.feather.bandit": _feather("Bandit"),
    "engine.feather.bandit.discount": _forgetting("Discounted"),
    "engine.feather.bandit.discount_interval": _forgetting("Discounted"),
    "engine.feather.bandit.window": _forgetting("SlidingWindow"),
    "engine.feather.q_learning": _feather("QLearning"),
    "engine.eviction.hotness": lambda spec: spec.engine.eviction.policy == "Hotness",
    "engine.host_memory.min_frequency": lambda spec: spec.engine.host_memory.admission != "All",
    "engine.host_memory.priority": lambda spec: ranks_by_hotness(spec.engine.host_memory),
    "engine.simulator.host_blocks": lambda spec: spec.engine.host_memory is not None,
    "router.lbgr.miss_milliseconds_per_kilotoken": _routing("Lbgr", "LbgrPaper"),
    "router.lbgr.hit_milliseconds_per_kilotoken": _routing("Lbgr", "LbgrPaper"),
    "router.lbgr.forgetting": _routing("Lbgr", "LbgrPaper"),
    "router.lbgr.considered_replicas": _routing("Lbgr"),
    "router.lbgr.decay_interval_milliseconds": _routing("LbgrPaper"),
}
