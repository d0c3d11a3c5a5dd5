"""The order of waiting requests: classes share by weight, tenants of a class equally, and deadlines order a tenant's.

Each class and each tenant has a counter of its service, in tokens. The class with the least service goes next. In it
the tenant with the least service goes, and of that tenant the request with the earliest deadline. Nobody starves,
because each choice raises the counters of the chosen ones only.

A class or tenant that had nothing to send gets no credit for that time: its counter begins at that of the one that was
served last (start-time fair queueing, Goyal et al. 1996). A request costs its expected tokens when it goes. Its real
cost is settled when it ends, as in VTC (Sheng et al. 2024, "Fairness in Serving Large Language Models", section 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ["ANSWER_WEIGHT", "Cost", "FairQueue"]

ANSWER_WEIGHT: Final = 2.0
"""An answer's token costs as much as two of a prompt (VTC, section 5.1)."""
_MEMORY: Final = 10.0  # seconds over which the speed of the service is averaged
_LEAST_BUSY: Final = 0.5  # seconds of service until the speed is known
_MAX_IDLE: Final = 4_096  # tenants without a waiting request that a class remembers

Item = TypeVar("Item")


class Cost(NamedTuple):
    """What one request took from its class and tenant. `tokens`: weighted."""

    name: str
    tenant: str
    tokens: float


@dataclass(slots=True, eq=False)
class _Entry(Generic[Item]):
    item: Item | None  # None once it was removed
    tokens: float
    deadline: float
    tenant: _Tenant[Item]


@dataclass(slots=True, eq=False)
class _Tenant(Generic[Item]):
    name: str
    class_: _Class[Item]
    service: float = 0.0
    heap: list[tuple[float, int, _Entry[Item]]] = field(default_factory=list)
    waiting: int = 0
    tokens: float = 0.0
    latest: float = 0.0  # deadline of its waiting items, at least
    number: int = 0  # of its entry in the class's heap; others are out of date


@dataclass(slots=True, eq=False)
class _Class(Generic[Item]):
    name: str
    weight: float
    service: float = 0.0  # tokens ÷ weight
    floor: float = 0.0  # service of the tenant that went last
    tenants: dict[str, _Tenant[Item]] = field(default_factory=dict)
    active: list[tuple[float, int, _Tenant[Item]]] = field(default_factory=list)  # a heap
    backlogged: int = 0  # tenants with waiting requests
    waiting: int = 0


class FairQueue(Generic[Item]):
    """weights: of each class, by name. Items must be hashable. Times are seconds on the caller's clock."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._classes: dict[str, _Class[Item]] = {}
        self._entries: dict[Item, _Entry[Item]] = {}
        self._floor = 0.0
        self._number = 0
        self._tokens = 0.0
        self._served = self._busy = 0.0
        self._at = 0.0
        self.configure(weights)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._entries

    def configure(self, weights: Mapping[str, float]) -> None:
        """Other weights from now on. The waiting requests of a class that is gone move to the first class."""
        old, self._classes = self._classes, {}
        for name, weight in weights.items():
            kept = old.pop(name, None)
            if kept is None:
                kept = _Class(name, weight, service=self._floor)
            kept.weight = weight
            self._classes[name] = kept
        first = next(iter(self._classes))
        for gone in old.values():
            for tenant in gone.tenants.values():
                for _, _, entry in sorted(tenant.heap, key=lambda one: one[:2]):
                    if (item := entry.item) is not None:
                        self._forget(item, entry)
                        self._insert(item, first, tenant.name, entry.tokens, entry.deadline)

    def add(self, item: Item, name: str, tenant: str, tokens: float, deadline: float, now: float) -> None:
        """The item waits. name: of its class. tokens: its expected cost."""
        self._clock(now)
        self._insert(item, name, tenant, tokens, deadline)

    def remove(self, item: Item) -> None:
        """The item does not wait any more. Items that do not wait are ignored."""
        entry = self._entries.get(item)
        if entry is not None:
            self._forget(item, entry)

    def next(self, now: float) -> tuple[Item, Cost]:
        """Takes out the item that goes next. IndexError if none waits."""
        self._clock(now)
        chosen = min((one for one in self._classes.values() if one.waiting), key=lambda one: one.service, default=None)
        if chosen is None:
            raise IndexError("nothing waits")
        tenant = self._least_served(chosen)
        while True:
            _, _, entry = heappop(tenant.heap)
            if (item := entry.item) is not None:
                break
        self._forget(item, entry)
        self._served += entry.tokens
        if tenant.waiting:
            self._activate(tenant)
        return item, self._charge(chosen, tenant, entry.tokens)

    def charge(self, name: str, tenant: str, tokens: float) -> Cost:
        """An item of the class goes without having waited."""
        class_ = self._classes[name]
        known = self._tenant(class_, tenant)
        class_.service = max(class_.service, self._floor)
        known.service = max(known.service, class_.floor)
        return self._charge(class_, known, tokens)

    def settle(self, cost: Cost, tokens: float) -> None:
        """The item has ended. tokens: what it really cost."""
        class_ = self._classes.get(cost.name)
        if class_ is None:
            return
        more = tokens - cost.tokens
        class_.service += more / class_.weight
        tenant = class_.tenants.get(cost.tenant)
        if tenant is not None:
            tenant.service += more
            if tenant.waiting and more < 0:
                self._activate(tenant)

    def wait(self, name: str, tenant: str, deadline: float, now: float) -> float:
        """Seconds until a new item of the tenant would go, by the speed of the service so far; 0 while it is unknown.

        The class and the tenant get their shares of the service while others wait.
        """
        self._clock(now)
        class_ = self._classes[name]
        known = class_.tenants.get(tenant)
        if known is None or not known.waiting or self._busy < _LEAST_BUSY or not self._served:
            return 0.0
        mine = known.tokens
        if deadline < known.latest:
            mine = sum(entry.tokens for at, _, entry in known.heap if at <= deadline and entry.item is not None)
        weights = sum(one.weight for one in self._classes.values() if one.waiting)
        ahead = min(self._tokens, mine * class_.backlogged * weights / class_.weight)
        return ahead * self._busy / self._served

    def crowded_out(self, name: str, tenant: str) -> Item | None:
        """The item that must leave a full queue for a new one; None if the new one is of those with the most places.

        It is the newest of the tenant with the most waiting items, in the class with the most for its weight.
        """
        own = self._classes[name]
        full = max(self._classes.values(), key=lambda one: one.waiting / one.weight)
        if not full.waiting:
            return None
        most = max(full.tenants.values(), key=lambda one: one.waiting)
        known = own.tenants.get(tenant)
        if full is own:
            if (known.waiting if known is not None else 0) + 1 >= most.waiting:
                return None
        elif (own.waiting + 1) / own.weight >= full.waiting / full.weight:
            return None
        newest = max((one for one in most.heap if one[2].item is not None), key=lambda one: one[1])
        return newest[2].item

    def late(self, now: float) -> list[Item]:
        """The items whose deadline has passed. They wait until they are removed."""
        return [item for item, entry in self._entries.items() if entry.deadline <= now]

    def waiting(self) -> dict[str, int]:
        """Items that wait, by class."""
        return {name: one.waiting for name, one in self._classes.items()}

    # -- inside -------------------------------------------------------------------------------------------------------

    def _insert(self, item: Item, name: str, tenant: str, tokens: float, deadline: float) -> None:
        class_ = self._classes[name]
        known = self._tenant(class_, tenant)
        if not class_.waiting:
            class_.service = max(class_.service, self._floor)
        entry = self._entries[item] = _Entry(item, tokens, deadline, known)
        self._number += 1
        heappush(known.heap, (deadline, self._number, entry))
        if not known.waiting:
            known.service = max(known.service, class_.floor)
            known.latest = deadline
            class_.backlogged += 1
            self._activate(known)
        known.latest = max(known.latest, deadline)
        known.waiting += 1
        class_.waiting += 1
        known.tokens += tokens
        self._tokens += tokens

    def _forget(self, item: Item, entry: _Entry[Item]) -> None:
        """Its heap entry stays until it comes to the top, or until most entries are such."""
        del self._entries[item]
        tenant = entry.tenant
        class_, entry.item = tenant.class_, None
        tenant.waiting -= 1
        class_.waiting -= 1
        tenant.tokens -= entry.tokens
        self._tokens -= entry.tokens
        if not tenant.waiting:
            class_.backlogged -= 1
            tenant.heap.clear()
        elif len(tenant.heap) > 2 * tenant.waiting + 64:
            tenant.heap = [one for one in tenant.heap if one[2].item is not None]
            heapify(tenant.heap)

    def _tenant(self, class_: _Class[Item], name: str) -> _Tenant[Item]:
        known = class_.tenants.get(name)
        if known is None:
            if len(class_.tenants) >= _MAX_IDLE + class_.backlogged:
                # Service that is not above the floor means nothing, so the least served tenants are forgotten.
                idle = sorted((one for one in class_.tenants.values() if not one.waiting), key=lambda one: one.service)
                for one in idle[: max(1, len(idle) // 2)]:
                    del class_.tenants[one.name]
            known = class_.tenants[name] = _Tenant(name, class_)
        return known

    def _activate(self, tenant: _Tenant[Item]) -> None:
        """Enters the tenant with its present service. Its earlier entry does not count any more."""
        self._number += 1
        tenant.number = self._number
        class_ = tenant.class_
        heappush(class_.active, (tenant.service, self._number, tenant))
        if len(class_.active) > 2 * class_.backlogged + 64:
            class_.active = [one for one in class_.active if one[1] == one[2].number and one[2].waiting]
            heapify(class_.active)

    def _least_served(self, class_: _Class[Item]) -> _Tenant[Item]:
        """Takes the entry of the least served tenant out of the heap."""
        while True:
            service, number, tenant = heappop(class_.active)
            if number != tenant.number or not tenant.waiting:
                continue
            if service == tenant.service:
                return tenant
            self._activate(tenant)  # a request that ended cost more than expected

    def _charge(self, class_: _Class[Item], tenant: _Tenant[Item], tokens: float) -> Cost:
        self._floor = max(self._floor, class_.service)
        class_.floor = max(class_.floor, tenant.service)
        class_.service += tokens / class_.weight
        tenant.service += tokens
        return Cost(class_.name, tenant.name, tokens)

    def _clock(self, now: float) -> None:
        """Counts the seconds in which requests waited: only they show the speed of the service.

        The speed is forgotten in time, so that the speed before a pause, or of a stalled engine, refuses nothing.
        """
        if now > self._at:
            passed, self._at = now - self._at, now
            fade = math.exp(-passed / _MEMORY)
            self._served *= fade
            self._busy *= fade
            if self._entries:
                self._busy += passed
