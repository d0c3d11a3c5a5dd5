"""Which LoRA adapters the replicas have loaded, and the replicas that a request for one should go to.

An engine computes with a few adapters at a time (`--max-loras`). A request for another one waits until all requests of
a loaded adapter have ended, whatever else is free (vLLM 0.32, `v1/core/sched/scheduler.py`). So a replica that has the
adapter, or a free slot, comes first. A loaded one takes at most 1.25 times the mean number of requests in flight:
consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018, §1) has the same bound.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import ClassVar, Final

from plumage.routing.interface import ReplicaState

__all__ = ["AdapterSlots", "AdapterState"]

_BALANCE: Final = 1.25
_NOBODY: Final[frozenset[str]] = frozenset()


class AdapterState(StrEnum):
    """What a request's adapter finds at a replica. WAITS: other adapters have requests in all slots."""

    LOADED = "Loaded"
    FREE_SLOT = "FreeSlot"
    WAITS = "Waits"


class _Replica:
    """The adapters of one replica. own: by name, this router's requests in flight there, the last used at the end;
    those without a request stay while there are slots. reported: those with running requests, by the engine."""

    __slots__: ClassVar = ("own", "reported")

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        self.reported: frozenset[str] = _NOBODY

    def busy(self) -> int:
        """Adapters that have requests there."""
        own = self.own
        count = len(self.reported)
        for name in own:
            if own[name] > 0 and name not in self.reported:
                count += 1
        return count


class AdapterSlots:
    """slots: adapters that a replica has room for. adapters: that the pool serves.

    `routed_to`: requests for adapters by what the chosen replica had for them.
    """

    def __init__(self, slots: int, adapters: int) -> None:
        self.slots = slots
        self.routed_to: dict[AdapterState, int] = dict.fromkeys(AdapterState, 0)
        self._all_fit = adapters <= slots
        self._replicas: dict[int, _Replica] = {}

    def narrow(self, adapter: str, candidates: Sequence[ReplicaState]) -> Sequence[ReplicaState]:
        """Those of `candidates` that a request for the adapter should go to; never none of them. "": the base model,
        which needs no slot."""
        if not adapter or self._all_fit:
            return candidates
        loaded: list[ReplicaState] = []
        free: list[ReplicaState] = []
        in_flight = 1
        for load in candidates:
            in_flight += load.routed
            found = self.state(adapter, load.slot)
            if found is AdapterState.LOADED:
                loaded.append(load)
            elif found is AdapterState.FREE_SLOT:
                free.append(load)
        most = math.ceil(_BALANCE * in_flight / len(candidates))
        return [load for load in loaded if load.routed < most] or loaded + free or candidates

    def state(self, adapter: str, slot: int) -> AdapterState:
        """What the adapter finds at the replica."""
        replica = self._replicas.get(slot)
        if replica is None:
            return AdapterState.FREE_SLOT
        if adapter in replica.own or adapter in replica.reported:
            return AdapterState.LOADED
        return AdapterState.FREE_SLOT if replica.busy() < self.slots else AdapterState.WAITS

    def routed(self, adapter: str, slot: int) -> AdapterState:
        """A request for the adapter goes to the replica. Returns what it finds there."""
        state = self.state(adapter, slot)
        self.routed_to[state] += 1
        replica = self._replicas.get(slot)
        if replica is None:
            replica = self._replicas[slot] = _Replica()
        own = replica.own
        own[adapter] = own.pop(adapter, 0) + 1
        self._drop_unused(own)
        return state

    def ended(self, adapter: str, slot: int) -> None:
        """A request for the adapter ended there."""
        replica = self._replicas.get(slot)
        if replica is not None and replica.own.get(adapter, 0) > 0:
            replica.own[adapter] -= 1
            self._drop_unused(replica.own)

    def reported(self, slot: int, adapters: Collection[str]) -> None:
        """The engine's last report: the adapters with running requests, of all routers."""
        replica = self._replicas.get(slot)
        if replica is None:
            if not adapters:
                return
            replica = self._replicas[slot] = _Replica()
        replica.reported = frozenset(adapters)

    def forget(self, slot: int) -> None:
        """The slot's replica was deleted."""
        self._replicas.pop(slot, None)

    def _drop_unused(self, own: dict[str, int]) -> None:
        """The engine gives the slot of the adapter that was used longest ago to the next one."""
        for name in list(own) if len(own) > self.slots else ():
            if own[name] == 0 and len(own) > self.slots:
                del own[name]
