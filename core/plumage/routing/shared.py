"""What a routing policy offers if it shares what it knows with other routers.

The checks are of the runtime: a policy of another package may have one, both or none of them.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from plumage.routing.learned import Learned
from plumage.routing.others import Account

__all__ = ["Cooperative", "Learner"]


@runtime_checkable
class Cooperative(Protocol):
    """A routing policy that counts the requests of other routers."""

    def account(self, slot: int, now: float) -> Account | None:
        """This router's requests; None before the first."""
        ...

    def hear(self, router: str, slot: int, account: Account | None, now: float) -> None:
        """Another router's account. None: nothing is known of that router any more."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A routing policy whose learned state can be shared."""

    name: str

    def learned(self, slot: int) -> Learned | None:
        """The state that it learned from its own outcomes of the slot; None while they are too few."""
        ...

    def adopt(self, slot: int, learned: Learned, now: float) -> bool:
        """Initialise the slot with this state. False, and no change, if the policy has own outcomes of the slot."""
        ...
