"""Which LoRA adapters the replicas have loaded, and the replicas that a request for one should go to.

An engine computes with a few adapters at a time (`--max-loras`). A request for another one waits until all requests of
a loaded adapter have ended, whatever else is free (vLLM 0.32, `v1/core/sched/scheduler.py`). So replicas where no slot
is left come last (decision 0306):

- While free slots outnumber the adapters without requests, any replica with the adapter or a free slot may get a
  request.
- Otherwise a second copy of an adapter takes another one's slot. Then replicas that have the adapter come first, up to
  1.5 times the mean number of requests in flight. Consistent hashing with bounded loads does so too (Mirrokni, Thorup
  and Zadimoghaddam 2018, §1).
- Requests follow those of their adapter that wait for a slot. Elsewhere they would take one more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import ClassVar, Final, TypeVar

from plumage.routing.interface import ReplicaState

__all__ = ["AdapterSlots", "AdapterState"]

_BALANCE: Final = 1.5
_Load = TypeVar("_Load", bound=ReplicaState)


class AdapterState(StrEnum):
    """What a request's adapter finds at a replica. WAITS: other adapters have requests in all slots."""

    LOADED = "Loaded"
    FREE_SLOT = "FreeSlot"
    WAITS = "Waits"


class _Replica:
    """The adapters of one replica. own: by name, this router's requests in flight there, the last used at the end;
    those without a request stay while there are slots. reported: those with running requests, by the engine.
    busy: those with requests, in the order in which they came. The engine gives its slots in this order."""

    __slots__: ClassVar = ("busy", "own", "reported")

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        self.reported: frozenset[str] = frozenset()
        self.busy: dict[str, None] = {}

    def holds(self, adapter: str, slots: int) -> bool:
        """Whether an adapter with requests has a slot, and does not wait for one."""
        if adapter in self.reported:
            return True
        before = 0
        for name in self.busy:
            if name == adapter:
                break
            before += name not in self.reported
        return before + len(self.reported) < slots


class AdapterSlots:
    """slots: adapters that a replica has room for. adapters: that the pool serves.

    `requests`: requests for adapters by what they found at the chosen replica.
    """

    def __init__(self, slots: int, adapters: int) -> None:
        self.slots = slots
        self.requests: dict[AdapterState, int] = dict.fromkeys(AdapterState, 0)
        self._adapters = adapters
        self._replicas: dict[int, _Replica] = {}
        self._replicas_of: dict[str, int] = {}  # how many have requests of an adapter
        self._served: dict[int, frozenset[str]] = {}  # where the agent says it

    def serving(self, adapter: str, candidates: Sequence[_Load]) -> Sequence[_Load]:
        """Returns the `candidates` that can answer a request for the adapter; perhaps none. An engine loads an adapter
        some time after it is in the manifest, or can't load it. Where that is not known, a replica counts as serving
        all."""
        if not adapter or not self._served:
            return candidates
        served = self._served
        return [load for load in candidates if load.slot not in served or adapter in served[load.slot]]

    def narrow(self, adapter: str, candidates: Sequence[ReplicaState]) -> Sequence[ReplicaState]:
        """Returns the `candidates` that a request for the adapter should go to; at least one. "": the base model,
        which needs no slot."""
        if not adapter or self._adapters <= self.slots:
            return candidates
        having: list[ReplicaState] = []
        free: list[ReplicaState] = []
        in_flight, free_slots = 1, 0
        for load in candidates:
            in_flight += load.routed
            replica = self._replicas.get(load.slot)
            room = self.slots if replica is None else self.slots - len(replica.busy)
            if replica is not None and (adapter in replica.busy or (room > 0 and adapter in replica.own)):
                having.append(load)
            elif room > 0:
                free.append(load)
            free_slots += max(0, room)
        if having and free_slots <= self._adapters - len(self._replicas_of):
            most = math.ceil(_BALANCE * in_flight / len(candidates))
            if below := [load for load in having if load.routed < most]:
                return below
        if having or free:
            return having + free
        waits = [self._wait(load.slot) for load in candidates]
        least = min(waits)
        return [load for load, wait in zip(candidates, waits, strict=True) if wait == least]

    def _wait(self, slot: int) -> tuple[int, int]:
        """The wait of a further adapter at a full replica: the adapters there, of which some wait too, and the fewest
        requests of one."""
        replica = self._replicas[slot]
        return len(replica.busy), min(max(1, replica.own.get(name, 0)) for name in replica.busy)

    def state(self, adapter: str, slot: int) -> AdapterState:
        """What a request for the adapter finds at the replica."""
        replica = self._replicas.get(slot)
        if replica is None:
            return AdapterState.FREE_SLOT
        if adapter in replica.busy:
            return AdapterState.LOADED if replica.holds(adapter, self.slots) else AdapterState.WAITS
        if len(replica.busy) >= self.slots:
            return AdapterState.WAITS
        return AdapterState.LOADED if adapter in replica.own else AdapterState.FREE_SLOT

    def routed(self, adapter: str, slot: int) -> AdapterState:
        """A request for the adapter goes to the replica. Returns what it finds there."""
        state = self.state(adapter, slot)
        self.requests[state] += 1
        replica = self._replica(slot)
        own = replica.own
        own[adapter] = own.pop(adapter, 0) + 1
        self._drop_unused(own)
        self._set_busy(replica, adapter)
        return state

    def ended(self, adapter: str, slot: int) -> None:
        """Counts the end of a request for the adapter there."""
        replica = self._replicas.get(slot)
        if replica is not None and replica.own.get(adapter, 0) > 0:
            replica.own[adapter] -= 1
            self._set_busy(replica, adapter)
            self._drop_unused(replica.own)

    def reported(self, slot: int, adapters: Collection[str]) -> None:
        """Takes the engine's last report: the adapters with running requests, of all routers."""
        now = frozenset(adapters)
        replica = self._replicas.get(slot)
        if replica is None:
            if not now:
                return
            replica = self._replica(slot)
        changed, replica.reported = replica.reported ^ now, now
        for adapter in changed:
            self._set_busy(replica, adapter)

    def serves(self, slot: int, adapters: Collection[str] | None) -> None:
        """Takes the agent's last report: the adapters that the engine serves. None: it does not report them."""
        if adapters is None:
            self._served.pop(slot, None)
        elif self._served.get(slot) != (now := frozenset(adapters)):
            self._served[slot] = now

    def forget(self, slot: int) -> None:
        """Forgets the slot, whose replica was deleted."""
        self._served.pop(slot, None)
        replica = self._replicas.pop(slot, None)
        if replica is not None:
            replica.own.clear()
            replica.reported = frozenset()
            for adapter in tuple(replica.busy):
                self._set_busy(replica, adapter)

    def _replica(self, slot: int) -> _Replica:
        replica = self._replicas.get(slot)
        if replica is None:
            replica = self._replicas[slot] = _Replica()
        return replica

    def _set_busy(self, replica: _Replica, adapter: str) -> None:
        """Accounts for whether the adapter has requests at the replica."""
        busy = replica.own.get(adapter, 0) > 0 or adapter in replica.reported
        if busy == (adapter in replica.busy):
            return
        count = self._replicas_of.get(adapter, 0)
        if busy:
            replica.busy[adapter] = None
            self._replicas_of[adapter] = count + 1
            return
        del replica.busy[adapter]
        if count > 1:
            self._replicas_of[adapter] = count - 1
        else:
            del self._replicas_of[adapter]

    def _drop_unused(self, own: dict[str, int]) -> None:
        """Frees the slots of adapters as the engine does: the one that was used longest ago first."""
        for name in list(own) if len(own) > self.slots else ():
            if own[name] == 0 and len(own) > self.slots:
                del own[name]
