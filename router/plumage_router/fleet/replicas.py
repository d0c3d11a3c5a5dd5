"""The replicas that a router knows, and which of them are available now.

The membership names the replicas. The router's health check, the breaker and the agent's reports decide which are
available. A slot is a small number for each replica; policies and the mirror use it as an index. A removed replica
keeps its slot until its last request ends, so that its work is never counted for a successor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from plumage.membership import Member, MemberState
from plumage.routing.interface import ReplicaState
from plumage_router.fleet.breaker import Breaker, BreakerState
from plumage_router.http.errors import Failure
from plumage_router.http.upstream import ConnectionPool

__all__ = ["Fleet", "Load", "Member", "MemberState", "Replica", "Totals"]


@dataclass(slots=True)
class Load(ReplicaState):
    """What policies see, with the replica's name: audit records keep lists of candidates, and slots are reused."""

    name: str = ""


@dataclass(slots=True)
class Totals:
    """The requests of one replica since the router started.

    `abandoned`: the client left or waited too long.
    `hit_error`: predicted minus actual hit tokens, over requests whose hits can be predicted; their prompts have
    `compared_tokens`.
    """

    routed: int = 0
    finished: int = 0
    failed: int = 0
    abandoned: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    output_tokens: int = 0
    predicted_hit_tokens: int = 0
    compared_tokens: int = 0
    hit_error: int = 0


@dataclass(slots=True, eq=False)
class Replica:
    """One engine. `load`: what the policy sees.

    `unhealthy_because`: TLS failed at the last health check; None after any other outcome.
    `cache_known`, `draining`, `stalled`: its agent's last report while that is fresh. Without a report the cache is
    unknown, and the replica stays available.
    """

    member: Member
    slot: int
    connections: ConnectionPool
    breaker: Breaker
    load: Load
    healthy: bool = True
    unhealthy_because: Failure | None = None
    cache_known: bool = False
    draining: bool = False
    stalled: bool = False
    gone: bool = False
    totals: Totals = field(default_factory=Totals)

    @property
    def id(self) -> str:
        return self.member.id

    @property
    def silent(self) -> bool:
        """It will send no first byte: its engine is stalled, or the router's health check fails."""
        return self.stalled or not self.healthy

    @property
    def leaving(self) -> bool:
        """It is about to stop: its connections may break without a failure."""
        return self.gone or self.draining or self.member.state is not MemberState.READY

    @property
    def shown_state(self) -> str:
        """The state for people."""
        if self.gone:
            return "Gone"
        if self.member.state is not MemberState.READY:
            return str(self.member.state)
        if self.stalled:
            return "Stalled"
        if self.draining:
            return "Draining"
        return "Ready" if self.healthy and self.breaker.state is not BreakerState.OPEN else "Unhealthy"

    def reason(self, now: float) -> str | None:
        """Why it is not available; None while it is."""
        away = self._away()
        if away is not None or self.breaker.allows(now):
            return away
        return "it fails more often than the others" if self.breaker.ejected else "its circuit breaker is open"

    @property
    def only_ejected(self) -> bool:
        """It would be available if it did not fail more often than the others."""
        return self.breaker.ejected and self._away() is None

    def _away(self) -> str | None:
        """Why it is not available, apart from its breaker."""
        if self.gone:
            return "it left the pool"
        if self.member.state is not MemberState.READY:
            return f"it is {self.member.state.lower()}"
        if self.draining:
            return "it is draining"
        if self.stalled:
            return "its engine is stalled"
        if not self.healthy:
            return "its health check fails" if self.unhealthy_because is None else self.unhealthy_because.text
        return None


class Fleet:
    """All replicas of the pool. Call `changed` after a change of anything that decides which replicas are available.

    `loads`: by slot, until the last request on the slot's replica has ended.
    """

    def __init__(
        self, make_connections: Callable[[Member], ConnectionPool], make_breaker: Callable[[], Breaker]
    ) -> None:
        self._make_connections = make_connections
        self._make_breaker = make_breaker
        self._by_id: dict[str, Replica] = {}
        self._by_slot: list[Replica | None] = []
        self.loads: dict[int, Load] = {}
        self._available: list[Load] | None = None  # cached until something changes, or:
        self._until = math.inf  # when the next open breaker becomes half-open
        self._listeners: list[Callable[[Replica, bool], None]] = []

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def listen(self, listener: Callable[[Replica, bool], None]) -> None:
        """Calls `listener(replica, True)` for each new replica, `(replica, False)` once its slot is free again."""
        self._listeners.append(listener)

    def at(self, slot: int) -> Replica:
        replica = self._by_slot[slot]
        assert replica is not None, "a chosen slot has a replica until its last request ends"
        return replica

    def get(self, replica_id: str) -> Replica | None:
        return self._by_id.get(replica_id)

    def update(self, members: Sequence[Member]) -> None:
        """Sets the members. A known id with another address is another replica."""
        wanted = {member.id: member for member in members}
        for replica in tuple(self):
            member = wanted.get(replica.id)
            if member is None or member.url != replica.member.url:
                self._remove(replica)
            else:
                replica.member = member
        for member in wanted.values():
            if member.id not in self._by_id:
                self._add(member)
        self.changed()

    def changed(self) -> None:
        self._available = None

    def candidates(
        self,
        now: float,
        without: Collection[Replica] = (),
        only: Callable[[Sequence[Load]], Sequence[Load]] | None = None,
    ) -> Sequence[Load]:
        """The loads of the available replicas. without: replicas to leave out. only: those of some loads that can
        answer the request. If they leave none, ejected replicas are offered, which answer most requests."""
        available = self._available
        if available is None or now >= self._until:
            until = math.inf
            available = []
            for replica in self._by_id.values():
                replica.breaker.advance(now)
                if replica.reason(now) is None:
                    available.append(replica.load)
                until = min(until, replica.breaker.retry_at)
            if not available:
                available = self._readmit(now)
            self._available, self._until = available, until
        if not without and only is None:
            return available
        # A free slot may belong to another replica now.
        slots = {replica.slot for replica in without if not replica.gone}
        left = self._left(available, slots, only)
        ejected = () if left else [replica.load for replica in self if replica.only_ejected]
        return left or self._left(ejected, slots, only)

    def _left(
        self, loads: Sequence[Load], slots: Collection[int], only: Callable[[Sequence[Load]], Sequence[Load]] | None
    ) -> Sequence[Load]:
        found = [load for load in loads if load.slot not in slots] if slots else loads
        return found if only is None else only(found)

    def _readmit(self, now: float) -> list[Load]:
        """No replica is available, so one that only fails often is better than none."""
        for replica in self:
            replica.breaker.readmit()
        return [replica.load for replica in self if replica.reason(now) is None]

    def why_none(self, now: float, only: Callable[[Sequence[Load]], Sequence[Load]] | None = None) -> str:
        """Why no replica is available, as one sentence for the client. only: see `candidates`."""
        if not self._by_id:
            return "the pool has no replicas"
        reasons: dict[str, int] = {}
        loads = self._left([replica.load for replica in self], (), only)
        for load in loads:
            reason = self.at(load.slot).reason(now) or "it was tried already"
            reasons[reason] = reasons.get(reason, 0) + 1
        return "; ".join(f"{count} of {len(loads)}: {reason}" for reason, count in reasons.items())

    def release(self, replica: Replica) -> None:
        """Ends a request on the replica. Frees the slot of a removed replica after its last request."""
        if replica.gone and replica.load.routed <= 0 and self._by_slot[replica.slot] is replica:
            self._free(replica)

    def close(self) -> None:
        for replica in filter(None, self._by_slot):
            replica.connections.abort()

    def _add(self, member: Member) -> None:
        connections = self._make_connections(member)
        try:
            slot = self._by_slot.index(None)
        except ValueError:
            slot = len(self._by_slot)
            self._by_slot.append(None)
        load = self.loads[slot] = Load(slot, name=member.id)
        replica = Replica(member, slot, connections, self._make_breaker(), load)
        self._by_slot[slot] = self._by_id[member.id] = replica
        for listener in self._listeners:
            listener(replica, True)

    def _remove(self, replica: Replica) -> None:
        replica.gone = True
        replica.connections.close()
        del self._by_id[replica.id]
        if replica.load.routed <= 0:
            self._free(replica)

    def _free(self, replica: Replica) -> None:
        self._by_slot[replica.slot] = None
        del self.loads[replica.slot]
        for listener in self._listeners:
            listener(replica, False)
