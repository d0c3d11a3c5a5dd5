"""The replicas a router knows, and which of them may be chosen now.

Membership says who is there; the replica's own probe, its breaker and its agent's word say who is fit. A slot is a
replica's small number while it lives: policies and the mirror index by it. A replica that left keeps its slot until
its last request is done, so that a successor can't be given its work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from plumage.membership import Member, MemberState
from plumage.routing.interface import ReplicaState
from plumage_router.breaker import Breaker, BreakerState
from plumage_router.upstream import Pool

__all__ = ["Fleet", "Load", "Member", "MemberState", "Replica", "Totals"]


@dataclass(slots=True)
class Load(ReplicaState):
    """What policies see, with the replica's name: lists of candidates are kept for explanations, and slots go round."""

    name: str = ""


@dataclass(slots=True)
class Totals:
    """What one replica was sent and what came of it, since the router started. `abandoned`: its answer was not wanted
    any more, its client having left or waited too long. `hit_error`: hit tokens predicted minus found, over requests
    whose hits can be predicted and whose prompts have `compared_tokens`."""

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
    """One engine. `load` is what the policy sees. `cache_known`, `draining`, `stalled` are its agent's word while that
    is fresh; a silent agent costs the knowledge, never the replica."""

    member: Member
    slot: int
    pool: Pool
    breaker: Breaker
    load: Load
    healthy: bool = True
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
        """No first byte will come from it: its agent sees no step, or it stopped answering our own probe."""
        return self.stalled or not self.healthy

    @property
    def leaving(self) -> bool:
        """It was told to end: connections to it may break without anybody's fault."""
        return self.gone or self.draining or self.member.state is not MemberState.READY

    @property
    def shown_state(self) -> str:
        """One word for people."""
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
        """Why it can't be chosen, or None when it can."""
        if self.gone:
            return "it left the pool"
        if self.member.state is not MemberState.READY:
            return f"it is {self.member.state.lower()}"
        if self.draining:
            return "it is draining"
        if self.stalled:
            return "its engine is stalled"
        if not self.healthy:
            return "its health check fails"
        return None if self.breaker.allows(now) else "its circuit breaker is open"


class Fleet:
    """All replicas of the pool. `changed` must be called after anything that decides who may be chosen has moved."""

    def __init__(self, make_pool: Callable[[str, int], Pool], make_breaker: Callable[[], Breaker]) -> None:
        self._make_pool = make_pool
        self._make_breaker = make_breaker
        self._by_id: dict[str, Replica] = {}
        self._by_slot: list[Replica | None] = []
        self._fit: list[Load] | None = None
        self._listeners: list[Callable[[Replica, bool], None]] = []

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def listen(self, listener: Callable[[Replica, bool], None]) -> None:
        """Calls `listener(replica, True)` for each that comes, `(replica, False)` once a slot is free again."""
        self._listeners.append(listener)

    def at(self, slot: int) -> Replica:
        replica = self._by_slot[slot]
        assert replica is not None, "a chosen slot has a replica until its last request is done"
        return replica

    def load_of(self, slot: int) -> Load:
        return self.at(slot).load

    def get(self, replica_id: str) -> Replica | None:
        return self._by_id.get(replica_id)

    def update(self, members: Sequence[Member]) -> None:
        """The membership now. A known id with another address is another replica."""
        wanted = {member.id: member for member in members}
        for replica in tuple(self):
            member = wanted.get(replica.id)
            if member is None or member.url != replica.member.url:
                self._leave(replica)
            else:
                replica.member = member
        for member in wanted.values():
            if member.id not in self._by_id:
                self._join(member)
        self.changed()

    def changed(self) -> None:
        self._fit = None

    def candidates(self, now: float, without: Collection[Replica] = ()) -> Sequence[Load]:
        """The replicas that may be chosen. The usual answer is kept until something changes."""
        fit = self._fit
        if fit is None:
            open_breakers = False
            fit = []
            for replica in self._by_id.values():
                replica.breaker.advance(now)
                if replica.reason(now) is None:
                    fit.append(replica.load)
                open_breakers = open_breakers or replica.breaker.state is not BreakerState.CLOSED
            if not open_breakers:  # an open breaker moves by the clock, so nothing is kept meanwhile
                self._fit = fit
        if without:
            slots = {replica.slot for replica in without if not replica.gone}  # a slot that is free again is another's
            return [state for state in fit if state.slot not in slots]
        return fit

    def why_none(self, now: float) -> str:
        """One sentence for the client that found no replica."""
        if not self._by_id:
            return "the pool has no replicas"
        reasons: dict[str, int] = {}
        for replica in self:
            reason = replica.reason(now) or "it was tried already"
            reasons[reason] = reasons.get(reason, 0) + 1
        return "; ".join(f"{count} of {len(self)}: {reason}" for reason, count in reasons.items())

    def release(self, replica: Replica) -> None:
        """A request on the replica ended; frees the slot of one that left once it was the last."""
        if replica.gone and replica.load.routed <= 0 and self._by_slot[replica.slot] is replica:
            self._free(replica)

    def close(self) -> None:
        for replica in filter(None, self._by_slot):
            replica.pool.abort()

    def _join(self, member: Member) -> None:
        host, port = member.address()
        try:
            slot = self._by_slot.index(None)
        except ValueError:
            slot = len(self._by_slot)
            self._by_slot.append(None)
        load = Load(slot, name=member.id)
        replica = Replica(member, slot, self._make_pool(host, port), self._make_breaker(), load)
        self._by_slot[slot] = self._by_id[member.id] = replica
        for listener in self._listeners:
            listener(replica, True)

    def _leave(self, replica: Replica) -> None:
        replica.gone = True
        replica.pool.close()
        del self._by_id[replica.id]
        if replica.load.routed <= 0:
            self._free(replica)

    def _free(self, replica: Replica) -> None:
        self._by_slot[replica.slot] = None
        for listener in self._listeners:
            listener(replica, False)
