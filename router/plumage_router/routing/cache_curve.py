"""The miss-ratio curve of this router's traffic: how much cache it could use. The autoscaler reads it.

Each request's chunk chain is added once, whatever replica got it. A pool that routes by prefix is close to one cache of
the size of all its replicas. A router sees only its own requests. An access costs 0.05 µs, a sampled one 2 µs
(`plumage.mrc.sampler`). Old accesses fade with a half-life of seven minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plumage.fleet_report import CurvePoints, curve_points
from plumage.hashing.chunks import ENDS, PIECE
from plumage.mrc import ReuseSampler

__all__ = ["CacheCurve"]

_SAMPLES: Final = 4096
_LARGEST: Final = 1 << 24  # pieces of 256 bytes: a billion tokens
_ENDS: Final = tuple(end // PIECE for end in ENDS)
_AGE_INTERVAL: Final = 60.0  # seconds
_FADE: Final = 0.9


class CacheCurve:
    """Call `add` for each request and `age` with each tick."""

    def __init__(self) -> None:
        self._sampler = ReuseSampler(_SAMPLES, _LARGEST, hashed=True)
        self._next: float | None = None

    def add(self, chunks: Sequence[int]) -> None:
        """Adds the chain of a prompt."""
        self._sampler.access_all(chunks, _ENDS)

    def age(self, now: float) -> None:
        """Fades old accesses, once a minute."""
        if self._next is None:
            self._next = now + _AGE_INTERVAL
        if now >= self._next:
            self._next = now + _AGE_INTERVAL
            self._sampler.age(_FADE)

    def points(self, bytes_per_token: float) -> CurvePoints:
        """The curve over tokens of cache. bytes_per_token: of this model's prompts."""
        return curve_points(self._sampler.curve(), PIECE / bytes_per_token)
