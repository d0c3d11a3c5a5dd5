"""The directory as the router uses it: a mirror kept fresh by a task, and each agent's word beside its replica.

Optional on purpose. Without it, or while it is away, the router is degraded: it routes by what it sent where itself
(pending owners then live longer, for no event will confirm them) and by load of its own. Nothing here is ever waited
for by a request.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from plumage.directory.schema import BEAT_TTL, State
from plumage.directory.sync import DirectorySync, ReplicaView
from plumage.directory.work import WorkShare
from plumage_router.clock import monotonic
from plumage_router.decide import Decider
from plumage_router.replicas import Fleet, Load, Replica

__all__ = ["DirectoryLink"]

LOOK: Final = 0.1  # seconds between looks at what agents and other routers said
ALONE: Final = 60.0  # seconds a pending owner lives while nobody can confirm it


class DirectoryLink:
    """Follows the fleet's replicas in the directory at `url`; None stays degraded for ever."""

    def __init__(
        self,
        url: str | None,
        *,
        pool: str,
        router: str,
        fleet: Fleet,
        decider: Decider,
        rng: random.Random | None = None,
    ) -> None:
        self._fleet = fleet
        self._decider = decider
        self._pending = decider.pending
        self.sync = DirectorySync(url, pool=pool, mirror=decider.mirror, rng=rng) if url else None
        self.work = (
            WorkShare(url, pool=pool, router=router, mirror=decider.mirror, work=self._own_work, rng=rng)
            if url
            else None
        )
        if self.work is not None:
            decider.share = self.work.sent
        fleet.listen(self._moved)
        self._note_freshness()

    @property
    def degraded(self) -> bool:
        return self.sync is None or self.sync.degraded

    def start(self) -> None:
        if self.sync is not None and self.work is not None:
            self.sync.start()
            self.work.start()

    async def close(self) -> None:
        if self.sync is not None and self.work is not None:
            await self.work.close()
            await self.sync.close()

    async def run(self) -> None:
        """Looks at the agents' words for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK)

    def look(self) -> None:
        self._note_freshness()
        sync, now = self.sync, monotonic()
        if sync is None or self.work is None:
            self._decider.mirror.lapse(now)
            return
        foreign = self.work.foreign(now)
        for replica in self._fleet:
            replica.load.foreign_work = foreign.get(replica.slot, 0.0)
        moved = [_hear(replica, sync.view(replica.id), now) for replica in self._fleet]
        if any(moved):
            self._fleet.changed()

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
