"""The state of LBGR (`lbgr`) for one replica, and for one request in flight."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from plumage.routing.backlog import Backlog, Share
from plumage.routing.context_cost import Stretch
from plumage.routing.others import Account
from plumage.routing.regression import Features, RecursiveLeastSquares

__all__ = ["MOST_LESSONS", "Replica", "Routed"]

_GOOD_FAITH = 4.0  # 1k tokens: the weight of a replica's reports before any was compared
_TRUST_MEMORY = 0.95  # of each report that was compared
MOST_LESSONS = 20.0  # lessons of the regression that may come at once


class Replica:
    """State of the replica that has a slot. Its successor is another object, so late tickets do not change it."""

    __slots__ = (
        "adopted", "answers", "arrivals", "backlog", "computed", "heard", "kept", "latency", "lessons", "promised",
        "routed", "seen", "stretch", "ttft",
    )  # fmt: skip

    def __init__(self, backlog: Backlog, ttft: RecursiveLeastSquares, latency: RecursiveLeastSquares) -> None:
        self.backlog = backlog
        self.ttft = ttft
        self.latency = latency
        self.stretch = Stretch()
        self.heard = 0.0
        self.seen = -inf  # the last first token of a stream
        self.answers = 0
        self.lessons = MOST_LESSONS
        self.adopted = 0  # outcomes that were another router's
        self.arrivals = 0  # requests that we sent there
        self.routed = self.computed = 0.0  # thousand tokens to compute: of these requests, and of their first tokens
        self.promised = self.kept = _GOOD_FAITH

    def account(self, now: float) -> Account | None:
        """Our requests, for other routers."""
        if not self.arrivals:
            return None
        owed, requests, unseen = self.backlog.parts(now)
        return Account(owed, requests, self.computed, self.routed, self.arrivals, round(unseen, 3))

    @property
    def trust(self) -> float:
        """Found ÷ predicted cached tokens of the replica."""
        return self.kept / self.promised

    def graded(self, promised: float, kept: float) -> None:
        """Learn from one answer: thousand tokens predicted as cached, and found. More than predicted counts as all."""
        self.promised = (self.promised - _GOOD_FAITH) * _TRUST_MEMORY + promised + _GOOD_FAITH
        self.kept = (self.kept - _GOOD_FAITH) * _TRUST_MEMORY + min(kept, promised) + _GOOD_FAITH

    def fade(self) -> None:
        """Forget half of the estimates after a long time without outcomes."""
        self.backlog.fade()
        self.promised = (self.promised + _GOOD_FAITH) / 2.0
        self.kept = (self.kept + _GOOD_FAITH) / 2.0


@dataclass(slots=True, init=False)
class Routed:
    """One request in flight. x: (hit, miss, W, 1). service: ŝ, in seconds.

    doubted: thousand tokens that the replica held at routing, if fewer are expected when its turn comes; else 0.
    """

    replica: Replica
    x: Features
    service: float
    share: Share
    doubted: float

    def __init__(self, replica: Replica, x: Features, service: float, share: Share, doubted: float = 0.0) -> None:
        self.replica, self.x, self.service, self.share, self.doubted = replica, x, service, share, doubted
