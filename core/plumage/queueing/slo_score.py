"""A request's place by three things: what its prefix saves, the time that it has left, and what it costs to compute.

The article's queue ("Cache-aware scheduling", section 2.5) scores requests by these three and prints no formula. This
one is ours: the tokens to compute, times the share of the waiting time that is left. So requests whose prefix is cached
go first and cheap ones before costly ones. Each request comes to the front while a fifth of its time is still left: at
a few choices a second it would otherwise miss its turn.
"""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["CANDIDATES", "QueueOrder", "slo_score"]

QueueOrder = Literal["Deadline", "SloScore"]

CANDIDATES: Final = 16
"""Requests of a tenant that are scored at each choice: so many with the earliest deadlines, and so many that cost least
when they came. A choice costs the same in any queue."""
_RESERVE: Final = 0.2  # share of its time that a request leaves for the requests that are due before it


def slo_score(compute: float, since: float, deadline: float, now: float) -> float:
    """The least score goes first. compute: tokens that are not cached. since, deadline, now: seconds, when the wait
    began and must end."""
    time = max(deadline - since, 1e-9)
    return compute * max(0.0, (deadline - now) / time - _RESERVE)
