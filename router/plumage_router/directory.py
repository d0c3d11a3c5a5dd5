"""The directory as the router uses it: a mirror kept fresh by a task, and each agent's word beside its replica.

Optional on purpose. Without it, or while it is away, the router is degraded: it routes by what it sent where itself
(pending owners then live longer, for no event will confirm them) and by load of its own. Nothing here is ever waited
for by a request.

What goes out: work in flight and pending owners, what the policy learned, and the accesses that the pool's hotness is
made of (0064: routers see every hit, engines tell none).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Final

from plumage.directory.hotness import HotnessShare
from plumage.directory.schema import BEAT_TTL, State
from plumage.directory.sync import DirectorySync, ReplicaView
from plumage.directory.work import WorkShare
from plumage.routing.interface import RoutingPolicy
from plumage_router.clock import monotonic
from plumage_router.decide import Decider
from plumage_router.directory_metrics import directory_lines
from plumage_router.gap import GapWatch
from plumage_router.hottest import Hottest
from plumage_router.learning import Learning
from plumage_router.replicas import Fleet, Load, Replica

__all__ = ["DirectoryLink"]

LOOK: Final = 0.1  # seconds between looks at what agents and other routers said
ALONE: Final = 60.0  # seconds a pending owner lives while nobody can confirm it


class DirectoryLink:
    """Follows the fleet's replicas in the directory at `url`; None stays degraded for ever. `engine`: what this router
    renders for; a replica of another model folder is unknown-cache."""

    def __init__(
        self,
        url: str | None,
        *,
        pool: str,
        router: str,
        fleet: Fleet,
        decider: Decider,
        hottest: Hottest | None = None,
        engine: str = "",
        rng: random.Random | None = None,
    ) -> None:
        self._fleet = fleet
        self._decider = decider
        self._pending = decider.pending
        self.sync = DirectorySync(url, pool=pool, mirror=decider.mirror, engine=engine, rng=rng) if url else None
        self.work = (
            WorkShare(url, pool=pool, router=router, mirror=decider.mirror, work=self._own_work, rng=rng)
            if url
            else None
        )
        self.hotness = HotnessShare(url, pool=pool, capacity=1, follow=False, rng=rng) if url else None
        self.learning: Learning | None = None
        if self.work is not None:
            decider.share = self.work.sent
            self.learning = Learning(decider.policy, fleet, self.work.learned)
        self.gaps = GapWatch()
        self._hottest = hottest or Hottest()
        self._routed = 0
        fleet.listen(self._moved)
        self._note_freshness()

    @property
    def degraded(self) -> bool:
        return self.sync is None or self.sync.degraded

    def use(self, policy: RoutingPolicy, pending: float) -> None:
        """Another policy chooses from now on: it learns what the directory knows, and its learning is told. pending:
        seconds until an unconfirmed owner lapses."""
        self._pending = pending
        self._note_freshness()
        if self.work is not None and (self.learning is None or not self.learning.is_of(policy)):
            self.learning = Learning(policy, self._fleet, self.work.learned)

    def start(self) -> None:
        for part in (self.sync, self.work, self.hotness):
            if part is not None:
                part.start()

    async def close(self) -> None:
        for part in (self.hotness, self.work, self.sync):
            if part is not None:
                await part.close()

    async def run(self) -> None:
        """Looks at the agents' words for ever."""
        while True:
            self.look()
            if self.sync is None:
                await self._keep_up()
            await asyncio.sleep(LOOK)

    async def _keep_up(self) -> None:
        """What the sync would do: a prompt that never came to an engine is not expected there for ever, and what is
        left of replicas that are gone is wiped."""
        for _ in self._decider.mirror.upkeep(monotonic()):
            await asyncio.sleep(0)

    def look(self) -> None:
        self._note_freshness()
        sync, now = self.sync, monotonic()
        if sync is None or self.work is None:
            return
        foreign = self.work.foreign(now)
        for replica in self._fleet:
            replica.load.foreign_work = foreign.get(replica.slot, 0.0)
        moved = [_hear(replica, sync.view(replica.id), now) for replica in self._fleet]
        if any(moved):
            self._fleet.changed()
        self.gaps.look(self._fleet, now)
        if self.learning is not None:
            self.learning.look(now)
        self._tell_accesses()

    def _tell_accesses(self) -> None:
        """Prefixes matched since the last look, by their deepest chunk, and requests: the pool's clock of hotness."""
        if self.hotness is None:
            return
        for chunk, (uses, tokens) in self._hottest.take().items():
            self.hotness.use(chunk, tokens, uses)
        routed = sum(replica.totals.routed for replica in self._fleet)
        self.hotness.request(max(0, routed - self._routed))  # a replica that left took its total with it
        self._routed = routed

    def metric_lines(self) -> Iterator[str]:
        """What came of talking to the directory, in Prometheus' text form."""
        yield from directory_lines(self)
        yield from self.gaps.lines()

    def _note_freshness(self) -> None:
        self._decider.pending = max(ALONE, self._pending) if self.degraded else self._pending

    def _own_work(self) -> dict[int, float]:
        """Seconds of this router's work on each replica, by slot."""
        work = {replica.slot: self._decider.work(replica.load) for replica in self._fleet}
        return {slot: seconds for slot, seconds in work.items() if seconds > 0.0}

    def _moved(self, replica: Replica, came: bool) -> None:
        if self.sync is not None and self.work is not None:
            slots = {known.id: known.slot for known in self._fleet}
            self.sync.set_replicas(slots)
            self.work.set_replicas(slots)
        if came and self.learning is not None:
            self.learning.start(replica, monotonic())
        if not came:
            self._decider.mirror.forget(replica.slot)


def _hear(replica: Replica, view: ReplicaView, now: float) -> bool:
    """Takes an agent's word over; True when it changes who may be chosen. A word past its lifetime is no word."""
    fresh = view.state is not None and now - view.seen < BEAT_TTL
    before = (replica.draining, replica.stalled)
    replica.cache_known = fresh and view.cache_known
    replica.draining = fresh and view.state is State.DRAINING
    replica.stalled = fresh and view.state is State.STALLED
    _take_load(replica.load, view if fresh else ReplicaView())
    return before != (replica.draining, replica.stalled)


def _take_load(load: Load, view: ReplicaView) -> None:
    load.running, load.waiting = view.load.running, view.load.waiting
    load.kv_usage = view.load.kv_usage
