"""The order of waiting requests: by weight among classes, equal among tenants, by deadline or score in a tenant.

Each class and each tenant has a counter of its service, in tokens. The class with the least service goes next. In it
the tenant with the least service goes, and of that tenant the request with the earliest deadline, or with the least
score (`slo_score`). No tenant starves, because each choice raises the counters of the chosen ones only.

A class or tenant that had nothing to send gets no credit for that time. Its counter begins at that of the one that was
served last (start-time fair queueing, Goyal et al. 1996). A request costs its expected tokens when it goes. Its real
cost is settled when it ends, as in VTC (Sheng et al. 2024, "Fairness in Serving Large Language Models", section 4).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, NamedTuple, TypeVar

from plumage.queueing.slo_score import CANDIDATES, slo_score

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
    item: Item
    tokens: float
    since: float
    deadline: float
    number: int
    tenant: _Tenant[Item]


@dataclass(slots=True, eq=False)
class _Tenant(Generic[Item]):
    name: str
    class_: _Class[Item]
    service: float = 0.0
    entries: list[_Entry[Item]] = field(default_factory=list)  # by deadline
    cheapest: list[_Entry[Item]] = field(default_factory=list)  # the same by tokens
    tokens: float = 0.0
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
    """weights: of each class, by name. Items must be hashable. Times are seconds on the caller's clock.

    `margin`: seconds before its deadline at which an item must go. It may change while items wait.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.margin = 0.0
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
                for entry in list(tenant.entries):
                    self._forget(entry)
                    self._insert(entry.item, first, tenant.name, entry.tokens, entry.since, entry.deadline)

    def add(self, item: Item, name: str, tenant: str, tokens: float, deadline: float, now: float) -> None:
        """Adds an item that waits. name: of its class. tokens: its expected cost."""
        self._clock(now)
        self._insert(item, name, tenant, tokens, now, deadline)

    def remove(self, item: Item) -> None:
        """Removes an item. Items that do not wait are ignored."""
        entry = self._entries.get(item)
        if entry is not None:
            self._forget(entry)

    def next(self, now: float, compute: Callable[[Item], float] | None = None) -> tuple[Item, Cost]:
        """Takes out the item that goes next. IndexError if none waits.

        compute: the tokens that an item would need now, to choose by score; None to choose by deadline.
        """
        self._clock(now)
        chosen = min((one for one in self._classes.values() if one.waiting), key=lambda one: one.service, default=None)
        if chosen is None:
            raise IndexError("nothing waits")
        tenant = self._least_served(chosen)
        entry = tenant.entries[0] if compute is None else _least_score(tenant, now, self.margin, compute)
        self._forget(entry)
        self._served += entry.tokens
        if tenant.entries:
            self._activate(tenant)
        return entry.item, self._charge(chosen, tenant, entry.tokens)

    def charge(self, name: str, tenant: str, tokens: float) -> Cost:
        """Counts an item admitted without a wait."""
        class_ = self._classes[name]
        known = self._tenant(class_, tenant)
        class_.service = max(class_.service, self._floor)
        known.service = max(known.service, class_.floor)
        return self._charge(class_, known, tokens)

    def refuse(self, cost: Cost) -> None:
        """Undoes the last `next`: its item is not admitted."""
        self._served = max(0.0, self._served - cost.tokens)
        self.charge_actual(cost, 0.0)

    def charge_actual(self, cost: Cost, tokens: float) -> None:
        """Replaces the estimated cost of an item that ended. tokens: actual tokens."""
        class_ = self._classes.get(cost.name)
        if class_ is None:
            return
        more = tokens - cost.tokens
        class_.service += more / class_.weight
        tenant = class_.tenants.get(cost.tenant)
        if tenant is not None:
            tenant.service += more
            if tenant.entries and more < 0:
                self._activate(tenant)

    def wait(self, name: str, tenant: str, deadline: float, now: float, *, score: float | None = None) -> float:
        """Seconds until a new item of the tenant would go, by the speed of the service so far; 0 while it is unknown.

        The class and the tenant get their shares of the service while others wait. score: the item's expected tokens
        where scores order a tenant's items; None where deadlines do.
        """
        self._clock(now)
        class_ = self._classes[name]
        known = class_.tenants.get(tenant)
        if known is None or not known.entries or self._busy < _LEAST_BUSY or not self._served:
            return 0.0
        mine = known.tokens
        if score is not None:
            cheaper = bisect_right(known.cheapest, score, key=lambda one: one.tokens)
            mine = sum(entry.tokens for entry in known.cheapest[:cheaper])
        elif deadline < known.entries[-1].deadline:
            mine = sum(entry.tokens for entry in known.entries if entry.deadline <= deadline)
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
        most = max(full.tenants.values(), key=lambda one: len(one.entries))
        known = own.tenants.get(tenant)
        if full is own:
            if (len(known.entries) if known is not None else 0) + 1 >= len(most.entries):
                return None
        elif (own.waiting + 1) / own.weight >= full.waiting / full.weight:
            return None
        return max(most.entries, key=lambda one: one.number).item

    def late(self, now: float) -> list[Item]:
        """The items that cannot meet their deadline any more. They wait until they are removed."""
        return [item for item, entry in self._entries.items() if entry.deadline <= now + self.margin]

    def waiting(self) -> dict[str, int]:
        """Items that wait, by class."""
        return {name: one.waiting for name, one in self._classes.items()}

    # -- inside -------------------------------------------------------------------------------------------------------

    def _insert(self, item: Item, name: str, tenant: str, tokens: float, since: float, deadline: float) -> None:
        class_ = self._classes[name]
        known = self._tenant(class_, tenant)
        if not class_.waiting:
            class_.service = max(class_.service, self._floor)
        self._number += 1
        entry = self._entries[item] = _Entry(item, tokens, since, deadline, self._number, known)
        if not known.entries:
            known.service = max(known.service, class_.floor)
            class_.backlogged += 1
        insort(known.entries, entry, key=_by_deadline)
        insort(known.cheapest, entry, key=_by_tokens)
        if len(known.entries) == 1:
            self._activate(known)
        class_.waiting += 1
        known.tokens += tokens
        self._tokens += tokens

    def _forget(self, entry: _Entry[Item]) -> None:
        del self._entries[entry.item]
        tenant = entry.tenant
        for entries, key in ((tenant.entries, _by_deadline), (tenant.cheapest, _by_tokens)):
            del entries[bisect_left(entries, key(entry), key=key)]
        class_ = tenant.class_
        class_.waiting -= 1
        class_.backlogged -= not tenant.entries
        tenant.tokens -= entry.tokens
        self._tokens -= entry.tokens

    def _tenant(self, class_: _Class[Item], name: str) -> _Tenant[Item]:
        known = class_.tenants.get(name)
        if known is None:
            if len(class_.tenants) >= _MAX_IDLE + class_.backlogged:
                # Service that is not above the floor means nothing, so the least served tenants are forgotten.
                idle = sorted((one for one in class_.tenants.values() if not one.entries), key=lambda one: one.service)
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
            class_.active = [one for one in class_.active if one[1] == one[2].number and one[2].entries]
            heapify(class_.active)

    def _least_served(self, class_: _Class[Item]) -> _Tenant[Item]:
        """Takes the entry of the least served tenant out of the heap."""
        while True:
            service, number, tenant = heappop(class_.active)
            if number != tenant.number or not tenant.entries:
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


def _by_deadline(entry: _Entry[Any]) -> tuple[float, int]:
    return entry.deadline, entry.number


def _by_tokens(entry: _Entry[Any]) -> tuple[float, int]:
    return entry.tokens, entry.number


def _least_score(tenant: _Tenant[Item], now: float, margin: float, compute: Callable[[Item], float]) -> _Entry[Item]:
    """Returns the entry with the least score among some of the tenant's; of equal ones the earliest deadline."""
    candidates = [*tenant.entries[:CANDIDATES], *tenant.cheapest[:CANDIDATES]]
    return min(candidates, key=lambda one: slo_score(compute(one.item), one.since, one.deadline - margin, now))
