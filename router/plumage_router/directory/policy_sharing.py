"""Shares what this router's policy learned with other routers, and starts new replicas from what those learned.

A policy that is not a `Learner` shares nothing. Runs beside the requests, every few seconds and for each new replica.
An unreadable value is counted; it costs a warm start, never a request.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from plumage.directory.sharing.shared_hash import SharedHash
from plumage.errors import ConfigurationError
from plumage.routing.interface import RoutingPolicy
from plumage.routing.learned import Learned, merge, pack, unpack
from plumage.routing.shared import Learner
from plumage_router.fleet.replicas import Fleet, Replica

__all__ = ["PolicySharing"]

INTERVAL: Final = 2.0  # seconds between offers


class PolicySharing:
    """`counts`: adopted (replicas that started from others' knowledge), malformed (unreadable offers)."""

    def __init__(self, policy: RoutingPolicy, fleet: Fleet, offers: SharedHash) -> None:
        self.counts: Counter[str] = Counter()
        self._policy = policy
        self._learner = policy if isinstance(policy, Learner) else None
        self._fleet = fleet
        self._offers = offers
        self._known: dict[str, Learned] = {}
        self._round = 0
        self._next = 0.0

    def is_of(self, policy: RoutingPolicy) -> bool:
        """Whether it shares this policy."""
        return policy is self._policy

    def check(self, now: float) -> None:
        """Reads new offers, and publishes its own once an interval. Call it often."""
        if self._learner is None:
            return
        if self._offers.rounds != self._round:
            self._round = self._offers.rounds
            self._read(self._learner)
            for replica in self._fleet:
                self.start(replica, now)
        if now >= self._next:
            self._next = now + INTERVAL
            self._publish(self._learner)

    def start(self, replica: Replica, now: float) -> None:
        """Starts a new replica from what other routers learned about it."""
        learned = self._known.get(replica.id)
        if self._learner is not None and learned is not None and self._learner.adopt(replica.slot, learned, now):
            self.counts["adopted"] += 1

    def _publish(self, learner: Learner) -> None:
        offered = {replica.id: learner.learned(replica.slot) for replica in self._fleet}
        known = {name: learned for name, learned in offered.items() if learned is not None}
        self._offers.mine = pack(learner.name, known) if known else None

    def _read(self, learner: Learner) -> None:
        offers = []
        for age, value in self._offers.others.values():
            try:
                offers.append((age, unpack(value, learner.name)))
            except ConfigurationError:
                self.counts["malformed"] += 1
        self._known = merge(offers)
