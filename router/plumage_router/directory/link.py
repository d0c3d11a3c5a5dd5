"""The router's link to the directory: a task keeps the mirror fresh, and applies each agent's report to its replica.

The directory is optional. Without it the router is degraded: it routes by its own requests and their load. No request
ever waits for the directory.

The router publishes its work in flight, its pending owners, and what its policy learned. It also publishes the accesses
that make up the pool's hotness: routers see every hit, and engines report none (decision 0064).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import Final

from plumage import defaults
from plumage.directory.mirror.sync import DirectorySync, ReplicaStatus
from plumage.directory.schema import BEAT_TTL, State
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage.directory.sharing.work_share import WorkShare
from plumage.routing.interface import RoutingPolicy
from plumage_router.clock import monotonic
from plumage_router.directory.hit_gap import HitGapWatch
from plumage_router.directory.metrics import directory_lines
from plumage_router.directory.policy_sharing import PolicySharing
from plumage_router.fleet.replicas import Fleet, Replica
from plumage_router.routing.decider import Decider
from plumage_router.routing.decision_log import HotPrefixes

__all__ = ["DirectoryLink"]

INTERVAL: Final = 0.1  # seconds between reads of the reports of agents and other routers
_FIRST_LOAD: Final = 10.0  # seconds after the start in which clients wait for the first load of the mirror
# Seconds until a pending owner expires while no event can confirm it.
DEGRADED_PENDING: Final = float(defaults.UNREPORTED_OWNER_SECONDS)


class DirectoryLink:
    """Follows the fleet's replicas in the directory.

    url: None for no directory; the link is degraded then.
    engine: the model that this router renders for. The cache of a replica with another model folder is unknown.
    """

    def __init__(
        self,
        url: str | None,
        *,
        pool: str,
        router: str,
        fleet: Fleet,
        decider: Decider,
        hot_prefixes: HotPrefixes,
        engine: str,
    ) -> None:
        self._fleet = fleet
        self._decider = decider
        self._pending = decider.pending_seconds
        self.sync = DirectorySync(url, pool=pool, mirror=decider.mirror, engine=engine) if url else None
        self.work = (
            WorkShare(
                url, pool=pool, router=router, mirror=decider.mirror, work=self._own_work,
                policies=lambda: decider.policies,
            )
            if url
            else None
        )  # fmt: skip
        self.hotness = HotnessShare(url, pool=pool, capacity=1, receive=False) if url else None
        self.policy_sharing: PolicySharing | None = None
        if self.work is not None:
            decider.share = self.work.sent
            decider.changed = self.work.changed
            self.policy_sharing = PolicySharing(decider.policy, fleet, self.work.learned)
        self.hit_gaps = HitGapWatch()
        self._hot_prefixes = hot_prefixes
        self._routed = 0
        self._load_until = inf  # set by `start`
        self._loaded = self.sync is None
        fleet.listen(self._replica_changed)
        self._update_pending()

    @property
    def degraded(self) -> bool:
        return self.sync is None or self.sync.degraded

    def loaded(self, now: float) -> bool:
        """Whether the mirror had once what the directory knew. It is also True if the directory can't be read, and
        `_FIRST_LOAD` after the start: an old or slow directory must not keep a router from serving."""
        if not self._loaded and self.sync is not None:
            away = self.sync.degraded and self.sync.counts["failures"] > 0
            self._loaded = self.sync.caught_up or away or now >= self._load_until
        return self._loaded

    def configure(self, policy: RoutingPolicy, pending: float) -> None:
        """Shares what another policy learns from now on. pending: seconds until a pending owner expires."""
        self._pending = pending
        self._update_pending()
        if self.work is not None and (self.policy_sharing is None or not self.policy_sharing.is_of(policy)):
            self.policy_sharing = PolicySharing(policy, self._fleet, self.work.learned)

    def start(self) -> None:
        self._load_until = monotonic() + _FIRST_LOAD
        for part in (self.sync, self.work, self.hotness):
            if part is not None:
                part.start()

    async def close(self) -> None:
        for part in (self.hotness, self.work, self.sync):
            if part is not None:
                await part.close()

    async def run(self) -> None:
        """Applies the reports of agents forever."""
        while True:
            self.check()
            if self.sync is None:
                await self._maintain_mirror()
            await asyncio.sleep(INTERVAL)

    async def _maintain_mirror(self) -> None:
        """Expires pending owners and removes the entries of removed replicas. With a directory the sync does this."""
        for _ in self._decider.mirror.upkeep(monotonic()):
            await asyncio.sleep(0)

    def check(self) -> None:
        """Applies what agents and other routers reported, and publishes this router's accesses."""
        self._update_pending()
        sync, now = self.sync, monotonic()
        if sync is None or self.work is None:
            return
        self.work.exchange.drop_silent(now)
        foreign = self.work.foreign(now)
        for replica in self._fleet:
            replica.load.foreign_work = foreign.get(replica.slot, 0.0)
        changed = False
        for replica in self._fleet:
            view = _fresh(sync.view(replica.id), now)
            changed |= _apply_report(replica, view)
            self._decider.adapters.reported(replica.slot, view.load.adapters)
            self._decider.adapters.serves(replica.slot, view.load.served)
        if changed:
            self._fleet.changed()
        self.hit_gaps.check(self._fleet, now)
        if self.policy_sharing is not None:
            self.policy_sharing.check(now)
        self._publish_accesses()

    def _publish_accesses(self) -> None:
        """Publishes the matched prefixes by their deepest chunk, and the number of requests, which ages the hotness."""
        if self.hotness is None:
            return
        for chunk, (uses, tokens) in self._hot_prefixes.take().items():
            self.hotness.use(chunk, tokens, uses)
        routed = sum(replica.totals.routed for replica in self._fleet)
        self.hotness.request(max(0, routed - self._routed))  # the total of a removed replica is gone
        self._routed = routed

    def metric_lines(self) -> Iterator[str]:
        """The metrics of the link in Prometheus' text format."""
        yield from directory_lines(self._counts())
        yield from self.hit_gaps.lines()

    def _counts(self) -> dict[str, Counter[str]]:
        """The counts of each part of the exchange, see `metrics.py`."""
        none: Counter[str] = Counter()
        work, sharing = self.work, self.policy_sharing
        return {
            "mirror": self.sync.counts if self.sync is not None else none,
            "work": work.stream.counts if work is not None else none,
            "estimators": work.learned.counts + sharing.counts if work is not None and sharing is not None else none,
            "hotness": self.hotness.stream.counts if self.hotness is not None else none,
        }

    def _update_pending(self) -> None:
        self._decider.pending_seconds = max(DEGRADED_PENDING, self._pending) if self.degraded else self._pending

    def _own_work(self) -> dict[int, float]:
        """Seconds of this router's work on each replica, by slot."""
        work = {replica.slot: self._decider.work(replica.load) for replica in self._fleet}
        return {slot: seconds for slot, seconds in work.items() if seconds > 0.0}

    def _replica_changed(self, replica: Replica, added: bool) -> None:
        if self.sync is not None and self.work is not None:
            slots = {known.id: known.slot for known in self._fleet}
            self.sync.set_replicas(slots)
            self.work.set_replicas(slots)
        if added and self.policy_sharing is not None:
            self.policy_sharing.start(replica, monotonic())
        if not added:
            self._decider.mirror.forget(replica.slot)
            self._decider.adapters.forget(replica.slot)


def _fresh(view: ReplicaStatus, now: float) -> ReplicaStatus:
    """The agent's report; an empty one if it is old or missing."""
    return view if view.state is not None and now - view.seen < BEAT_TTL else ReplicaStatus()


def _apply_report(replica: Replica, view: ReplicaStatus) -> bool:
    """Applies an agent's report. Returns True if it changes which replicas are available."""
    before = (replica.draining, replica.stalled)
    replica.cache_known = view.cache_known
    replica.draining = view.state is State.DRAINING
    replica.stalled = view.state is State.STALLED
    load = replica.load
    load.running, load.waiting = view.load.running, view.load.waiting
    load.kv_usage, load.held_back = view.load.kv_usage, view.load.held_back
    return before != (replica.draining, replica.stalled)
