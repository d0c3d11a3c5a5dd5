"""What routers of one pool report to each other of their requests, so that each decides like one that sees them all.

A router reports an `Account` for each replica. Its sums only grow, so a lost message costs nothing: the next one has
all. `Others` keeps the last account of each router and slot, and returns what changed. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Account", "News", "Others"]


class Account(NamedTuple):
    """One router's requests on one replica. Tokens are to compute, in thousands.

    owed: of `requests`, which stream and have no first token yet. computed: of all first tokens so far. routed: of all
    `arrivals` so far. unseen: seconds of work for answers in one piece, which the clock does not count as done.
    """

    owed: float
    requests: int
    computed: float
    routed: float
    arrivals: int
    unseen: float = 0.0


class News(NamedTuple):
    """All other routers on one replica: owed and requests now; computed, routed and arrivals since the last news."""

    owed: float
    requests: int
    computed: float
    routed: float
    arrivals: int


class Others:
    """The last accounts of other routers, by slot."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: dict[int, dict[str, Account]] = {}

    def take(self, router: str, slot: int, account: Account | None) -> News:
        """What this account changes. The first one of a router counts from now on, as does one whose sums fell."""
        heard = self._heard.setdefault(slot, {})
        before = heard.pop(router, account)
        computed = routed = 0.0
        arrivals = 0
        if account is not None:
            heard[router] = account
            if before is not None and account.arrivals >= before.arrivals and account.computed >= before.computed:
                computed = account.computed - before.computed
                routed = account.routed - before.routed
                arrivals = account.arrivals - before.arrivals
        owed, requests = 0.0, 0
        for one in heard.values():
            owed += one.owed
            requests += one.requests
        return News(owed, requests, computed, routed, arrivals)

    def forget(self, slot: int) -> None:
        """Forgets the slot, whose replica was deleted."""
        self._heard.pop(slot, None)
