"""How much cache this router's traffic could use: a miss-ratio curve of the prompts' chunks, as an autoscaler asks it.

Every request's chain goes in once, from its root, whatever replica it went to: a pool that routes by prefix is close to
one cache of all its replicas' sizes. A router sees its own requests only. An access costs 0.15 µs, a sampled one 2 µs
(`plumage.mrc.sampler`); old accesses fade with a half-life of seven minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plumage.fleet_report import CurvePoints, curve_points
from plumage.hashing.chunks import CHUNK
from plumage.mrc import ReuseSampler

__all__ = ["Reuse"]

SAMPLES: Final = 4096
LARGEST: Final = 1 << 24  # chunks: a billion tokens
EVERY: Final = 60.0  # seconds between ageings
FADE: Final = 0.9


class Reuse:
    """`seen` for each request, `age` now and then, `points` when somebody asks."""

    def __init__(self) -> None:
        self._sampler = ReuseSampler(SAMPLES, LARGEST)
        self._next: float | None = None

    def seen(self, chunks: Sequence[int]) -> None:
        """A prompt's chain."""
        self._sampler.access_all(chunks)

    def age(self, now: float) -> None:
        """Lets what was seen fade once a minute; call it as often as you like."""
        if self._next is None:
            self._next = now + EVERY
        if now >= self._next:
            self._next = now + EVERY
            self._sampler.age(FADE)

    def points(self, bytes_per_token: float) -> CurvePoints:
        """The curve over tokens. bytes_per_token: of this model's prompts."""
        return curve_points(self._sampler.curve(), CHUNK / bytes_per_token)
