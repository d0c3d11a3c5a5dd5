"""A second policy that decides beside the one in use and sends nothing, to see what it would change.

It decides when a request is first routed, with the same inputs, and learns from the outcome at the replica that got the
request. It sees the load that the policy in use makes, not the load that its own choices would make. So its figures say
what would change for one request, not how a fleet would run under it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plumage.routing.interface import Choice, Query, ReplicaState, RoutingPolicy, Ticket

__all__ = ["Shadow", "ShadowChoice"]

log = logging.getLogger(__name__)

_AVERAGED: Final = 10_000.0  # decisions, after which older ones count half in the shares of the busiest replicas


@dataclass(slots=True)
class ShadowChoice:
    """What the second policy would have done for one request. hit_tokens: cached where it would have sent the request.

    ticket: for the replica that got the request; the policy learns from it.
    """

    owner: Shadow
    policy: RoutingPolicy
    ticket: Ticket
    load: ReplicaState
    hit_tokens: float

    def first_token(self, now: float) -> None:
        self.owner.guard(self.policy.first_token, self.ticket, now)

    def finished(self, now: float, cached_tokens: float | None) -> None:
        self.owner.guard(self.policy.finished, self.ticket, now, cached_tokens)

    def failed(self, now: float) -> None:
        self.owner.guard(self.policy.failed, self.ticket, now)


class Shadow:
    """Asks `policy` at each decision, and compares.

    `same`, `other`: its choices, by whether the policy in use chose the same replica. `tokens`: of all their prompts.
    `hit_tokens`: of these, cached at the replicas that it chose; `used_hit_tokens`: at those that got the requests.
    `errors`: of a policy of your own. They have no effect on requests.
    """

    def __init__(self, policy: RoutingPolicy, load_of: Callable[[int], ReplicaState]) -> None:
        self.policy = policy
        self.same = self.other = self.errors = 0
        self.tokens = self.hit_tokens = self.used_hit_tokens = 0.0
        self._load_of = load_of
        self._chosen: Counter[int] = Counter()  # recent decisions by slot
        self._used: Counter[int] = Counter()
        self._counted = 0

    def decide(self, query: Query, candidates: Sequence[ReplicaState], used: int) -> ShadowChoice | None:
        """used: the slot that gets the request. None if the policy failed."""
        choice = self.guard(self.policy.choose, query, candidates)
        if choice is None:
            return None
        ticket = self.guard(self.policy.routed, query, Choice(used, considered=(self._load_of(used),)))
        if ticket is None:
            return None
        found = query.hits.get(choice.slot, 0.0)
        self._count(query, choice.slot, used)
        return ShadowChoice(self, self.policy, ticket, self._load_of(choice.slot), found)

    def busiest(self) -> tuple[float, float]:
        """The largest shares of recent requests that one replica would get, and got."""
        return _largest(self._chosen), _largest(self._used)

    def forget(self, slot: int) -> None:
        """Forgets the slot, whose replica was deleted."""
        self.guard(self.policy.forget, slot)
        self._chosen.pop(slot, None)
        self._used.pop(slot, None)

    def guard(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """What the method returns; None if it raises. The first error is logged."""
        try:
            return method(*arguments)
        except Exception:
            self.errors += 1
            if self.errors == 1:
                log.exception("the shadow policy %s failed; requests are not affected", self.policy.name)
            return None

    def _count(self, query: Query, chosen: int, used: int) -> None:
        self.same += chosen == used
        self.other += chosen != used
        self.tokens += query.tokens
        self.hit_tokens += min(query.hits.get(chosen, 0.0), query.tokens)
        self.used_hit_tokens += min(query.hits.get(used, 0.0), query.tokens)
        self._counted += 1
        if self._counted > _AVERAGED:
            self._counted //= 2
            for counts in (self._chosen, self._used):
                for slot in list(counts):
                    counts[slot] //= 2
        self._chosen[chosen] += 1
        self._used[used] += 1


def _largest(counts: Counter[int]) -> float:
    total = counts.total()
    return max(counts.values()) / total if total else 0.0
