"""The settings of LBGR. This module is not compiled, since the names of settings are read from the class."""

from __future__ import annotations

from dataclasses import dataclass

from plumage import defaults
from plumage.errors import ConfigurationError

__all__ = ["LbgrSettings"]


@dataclass(frozen=True, slots=True)
class LbgrSettings:
    """Settings of LBGR; `lbgr` explains them.

    c_hit, c_miss: seconds per 1k tokens. c_miss counts until it is learned, and is a maximum without streams.
    forgetting: factor of the regressions. initial_variance: of their weights, around those of the fleet.
    crowding: weight of the delay of others. copying: weight of a second copy, in times ŝ.
    spread: weight of the tokens that the replica computed in the last `spread_seconds`.
    most_correction: largest share of ŝ + W that θ·x may add or subtract.
    arrival_seconds: window of the average rate of arrivals.
    stale_seconds: after this time without outcomes an estimate moves half way to the fleet's.
    considered: the most candidates that are scored for one request.
    loyalty: see `former`. long_queue: seconds of work, see `queued`. foresight: seconds.
    """

    c_hit: float = defaults.HIT_MILLISECONDS_PER_KILOTOKEN / 1000
    c_miss: float = defaults.MISS_MILLISECONDS_PER_KILOTOKEN / 1000
    forgetting: float = float(defaults.RLS_FORGETTING)
    initial_variance: float = 1.0
    crowding: float = 1.0
    spread: float = 24.0
    spread_seconds: float = 60.0
    most_correction: float = 0.25
    arrival_seconds: float = 10.0
    stale_seconds: float = 30.0
    considered: int = defaults.CONSIDERED_REPLICAS
    loyalty: float = 1.0
    copying: float = 25.0
    long_queue: float = 0.5
    foresight: float = 20.0

    def __post_init__(self) -> None:
        for name in ("c_miss", "initial_variance", "arrival_seconds", "spread_seconds", "stale_seconds", "foresight"):
            if not getattr(self, name) > 0.0:
                raise ConfigurationError(f"lbgr.{name} must be above 0, got {getattr(self, name)}")
        if not 0.5 <= self.forgetting <= 1.0:
            raise ConfigurationError(f"lbgr.forgetting must be between 0.5 and 1, got {self.forgetting}")
        for name in ("c_hit", "copying", "crowding", "loyalty", "spread", "most_correction", "long_queue"):
            if not getattr(self, name) >= 0.0:
                raise ConfigurationError(f"lbgr.{name} must not be negative, got {getattr(self, name)}")
        if not self.considered >= 2:
            raise ConfigurationError(f"lbgr.considered must be at least 2, got {self.considered}")
