"""A manifest's settings of the policies → the options their constructors take (seconds, floats, Python names)."""

from __future__ import annotations

from typing import Any

from plumage.api.v1alpha1.cache import EvictionSpec, HostMemorySpec
from plumage.api.v1alpha1.feather import BanditSpec, FeatherSpec, QLearningSpec
from plumage.api.v1alpha1.router import LbgrSpec
from plumage.settings.engine_policies import EvictionConfig, FeatherConfig, HostTierConfig, RecordConfig

__all__ = ["eviction", "feather", "host_tier", "lbgr", "ranks_by_hotness"]


def feather(spec: FeatherSpec) -> FeatherConfig:
    """Returns the settings of `plumage.batching.make_queue`."""
    return FeatherConfig(
        policy=_stop_policy(spec),
        chunk_tokens=spec.chunk_tokens,
        max_wait_seconds=spec.max_wait_seconds,
        order_batch=spec.order_batch,
        options={} if spec.policy == "Fcfs" else {"order": spec.candidate_order} | _stop_options(spec),
    )


def _stop_policy(spec: FeatherSpec) -> str:
    """Returns the name of the stop policy for `make_queue`."""
    forms = {"Bandit": spec.bandit.form, "QLearning": spec.q_learning.form}
    return f"{spec.policy}Paper" if forms.get(spec.policy) == "Paper" else spec.policy


def _stop_options(spec: FeatherSpec) -> dict[str, Any]:
    match _stop_policy(spec):
        case "QLearningPaper":
            return _q_options(spec.q_learning)
        case "Bandit":
            return {
                "exploration": float(spec.bandit.exploration),
                "forgetting": spec.bandit.forgetting,
                "credit": spec.bandit.credit,
                **_memory(spec.bandit),
            }
        case "QLearning":
            return {
                **_q_options(spec.q_learning),
                "decay": float(spec.q_learning.exploration_decay),
                "credit": spec.q_learning.credit,
            }
        case "Heuristic":
            return {
                "max_loss": spec.heuristic.loss_threshold,
                "relaxed_loss": spec.heuristic.relaxed_loss_threshold,
                "many_peers": spec.heuristic.relaxed_peers,
                "max_floor": spec.heuristic.max_batch_floor,
            }
        case _:
            return {}


def _q_options(spec: QLearningSpec) -> dict[str, Any]:
    """Returns the options that both forms have."""
    return {
        "alpha": float(spec.learning_rate),
        "gamma": float(spec.discount_factor),
        "min_epsilon": float(spec.minimum_exploration),
    }


def _memory(spec: BanditSpec) -> dict[str, Any]:
    match spec.forgetting:
        case "Discounted":
            return {"discount": float(spec.discount), "discount_interval": spec.discount_interval}
        case "SlidingWindow":
            return {"window": spec.window}
        case _:
            return {}


def eviction(spec: EvictionSpec, block_tokens: int) -> EvictionConfig:
    """Returns the settings of `plumage.eviction.make_policy`."""
    if spec.policy != "Hotness" or spec.hotness.form == "Adaptive":
        return EvictionConfig(policy=spec.policy)
    widths = spec.hotness.filter
    return EvictionConfig(
        policy="HotnessPaper",
        options={
            "priority": spec.hotness.priority,
            "block_tokens": block_tokens,
            "aging_interval": spec.hotness.aging_interval,
            "fingerprint_bits": widths.fingerprint_bits,
            "clock_bits": widths.clock_bits,
            "frequency_bits": widths.frequency_bits,
            "depth_bits": widths.depth_bits,
        },
    )


def host_tier(spec: HostMemorySpec) -> HostTierConfig:
    """Returns the settings of `plumage.tiering`, without the options that its modes do not use."""
    used: dict[str, Any] = {} if spec.admission == "All" else {"min_frequency": spec.min_frequency}
    if ranks_by_hotness(spec):
        used["priority"] = spec.priority
    widths = spec.filter
    record = RecordConfig(
        fingerprint_bits=widths.fingerprint_bits,
        clock_bits=widths.clock_bits,
        frequency_bits=widths.frequency_bits,
        depth_bits=widths.depth_bits,
        aging_interval=spec.aging_interval,
    )
    return HostTierConfig(admission=spec.admission, promotion=spec.promotion, record=record, **used)


def ranks_by_hotness(spec: HostMemorySpec) -> bool:
    """Whether the priority formula is used. With admission All it orders the evictions."""
    return spec.admission != "Frequency" or spec.promotion == "Hotness"


def lbgr(policy: str, spec: LbgrSpec) -> dict[str, Any]:
    """Returns the options of the Lbgr policies of `plumage.routing`: seconds for 1,000 tokens; nothing for the
    others."""
    learned = {"c_miss": spec.miss_milliseconds_per_kilotoken / 1000, "forgetting": float(spec.forgetting)}
    hit = {"c_hit": spec.hit_milliseconds_per_kilotoken / 1000}
    match policy:
        case "Lbgr":
            return learned | hit | {"considered": spec.considered_replicas}
        case "LbgrPaper":
            return learned | hit | {"decay_interval": spec.decay_interval_milliseconds / 1000}
        case _:
            return {}
