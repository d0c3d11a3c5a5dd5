"""The learned state of a policy in the form that routers share (the directory's `estimators` row).

A policy that can share its state is a `Learner`; most policies are not. State from other routers initialises a slot
that this router has not learned about: after a restart, or for a replica that only others used. After that only its own
outcomes count. Pure: bytes in, numbers out. Times are ages in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

import msgspec

from plumage.errors import ConfigurationError
from plumage.routing.regression import Features

__all__ = ["MOST_UPDATES", "Learned", "merge", "pack", "unpack"]

MOST_UPDATES = 1000  # outcomes; the regressions forget older ones
MOST_REPLICAS = 4096
_HALF_LIFE = 3600.0  # seconds: an offer of this age weighs half
_LARGEST = 1e6  # seconds, or seconds per unit: a larger value is damaged


class Learned(msgspec.Struct, array_like=True, frozen=True):
    """The learned state of one replica.

    c_miss: seconds for a thousand computed tokens. experience: thousands of tokens behind that measurement.
    ttft, latency: the weights of the two regressions. updates: the outcomes that they were learned from.
    """

    c_miss: float
    experience: float
    ttft: Features
    latency: Features
    updates: int

    def __post_init__(self) -> None:
        numbers = (self.c_miss, self.experience, *self.ttft, *self.latency)
        if not all(isfinite(number) and abs(number) <= _LARGEST for number in numbers):
            raise ValueError("its numbers must be finite and at most a million")
        if self.c_miss <= 0.0 or self.experience <= 0.0 or self.updates < 1:
            raise ValueError("c_miss, experience and updates must be above 0")


class _Offer(msgspec.Struct, array_like=True, frozen=True):
    policy: str
    replicas: dict[str, Learned]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Offer).decode


def pack(policy: str, replicas: Mapping[str, Learned]) -> bytes:
    """Pack one router's offer: replicas by id. Of too many replicas those with most outcomes are kept."""
    kept = sorted(replicas, key=lambda name: -replicas[name].updates)[:MOST_REPLICAS]
    return _encode(_Offer(policy, {name: replicas[name] for name in kept}))


def unpack(data: bytes, policy: str) -> dict[str, Learned]:
    """Unpack the replicas of an offer; empty for another policy. ConfigurationError if it is malformed."""
    try:
        offer = _decode(data)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"what a router learned can't be read: {error}") from error
    return offer.replicas if offer.policy == policy and len(offer.replicas) <= MOST_REPLICAS else {}


def merge(offers: Iterable[tuple[float, Mapping[str, Learned]]]) -> dict[str, Learned]:
    """Merge (age in seconds, replicas) of several routers: means, weighted by outcomes and halved every hour."""
    found: dict[str, list[tuple[float, Learned]]] = {}
    for age, replicas in offers:
        for name, learned in replicas.items():
            weight = min(learned.updates, MOST_UPDATES) * 0.5 ** (max(age, 0.0) / _HALF_LIFE)
            found.setdefault(name, []).append((weight, learned))
    return {name: _mean(entries) for name, entries in found.items()}


def _mean(entries: list[tuple[float, Learned]]) -> Learned:
    if len(entries) == 1:
        return entries[0][1]
    total = sum(weight for weight, _ in entries) or 1.0

    def mean(values: Iterable[float]) -> float:
        return sum(weight * value for (weight, _), value in zip(entries, values, strict=True)) / total

    def each(rows: Iterable[Features]) -> Features:
        first, second, third, fourth = (mean(column) for column in zip(*rows, strict=True))
        return first, second, third, fourth

    known = [learned for _, learned in entries]
    return Learned(
        mean(one.c_miss for one in known),
        mean(one.experience for one in known),
        each(one.ttft for one in known),
        each(one.latency for one in known),
        max(one.updates for one in known),
    )
