"""One active operator of several: whoever holds the Lease.

As client-go does it, time is this machine's monotonic clock from when a renewal was *seen*; the clocks of two machines
are never compared, so one that is an hour off neither steals the Lease nor holds it for ever. The holder counts from
when it *sent* its last renewal, which is no later than when another can have seen it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from plumage_operator.kube.client import KubeClient, resource_path
from plumage_operator.kube.errors import ApiError, ConflictError, GoneError, UnavailableError
from plumage_operator.observability.logs import cause

__all__ = ["DURATION", "LeaderElector", "LeaseLostError", "ObservedLease", "can_acquire"]

log = logging.getLogger(__name__)

DURATION: Final = 15.0  # seconds without a renewal after which another may take it

DEADLINE: Final = 10.0  # seconds without a renewal after which its holder ends, well before that

RETRY: Final = 2.0

PARTING: Final = 3.0  # seconds that an operator which ends may spend on its release: a kubelet waits for it, and kills

_VERSION: Final = "coordination.k8s.io/v1"


class LeaseLostError(ApiError):
    """Another operator may be active now: this one must end at once."""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """The Lease as it was last seen to change. at: monotonic seconds."""

    holder: str
    renewal: str
    at: float


def can_acquire(seen: ObservedLease | None, identity: str, now: float) -> bool:
    """Whether the Lease is free, ours, or was left."""
    return seen is None or seen.holder in ("", identity) or now - seen.at > DURATION


class LeaderElector:
    """identity: this operator's, unique. clock: monotonic seconds. wall: seconds since 1970, which are written for
    people to read and never compared."""

    def __init__(
        self,
        api: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._path = resource_path(_VERSION, "leases", namespace)
        self._name = name
        self._identity = identity
        self._clock = clock
        self._sleep = sleep
        self._wall = wall
        self._seen: ObservedLease | None = None
        self._renewed = clock()

    async def acquire(self, alive: Callable[[], None] = lambda: None) -> None:
        """Returns when this operator is the active one. alive: called at each try."""
        said = ""
        while True:
            alive()
            try:
                if await self._tried(DEADLINE):
                    return
                said = self._say(f"waiting: {self._holder()} is active", said)
            except ApiError as error:
                said = self._say(f"can't reach the Lease: {error}", said)
            await self._sleep(RETRY)

    async def hold(self) -> None:
        """Renews for as long as it can; LeaseLostError when it can't any more."""
        while True:
            await self._sleep(min(RETRY, self._left))
            try:
                if not await self._tried(self._left) and self._holder() != self._identity:
                    raise LeaseLostError(f"the Lease went to {self._holder()}")
            except LeaseLostError:
                raise
            except ApiError as error:
                log.warning("can't renew the Lease: %s", error, extra=cause("lease"))
            if self._left == 0.0:
                raise LeaseLostError(f"the Lease could not be renewed for {DEADLINE:.0f} s")

    async def release(self) -> None:
        """Let the next one begin at once; whatever fails, the Lease runs out by itself."""
        try:
            async with asyncio.timeout(PARTING):
                await self._release()
        except (ApiError, TimeoutError) as error:
            log.info("the Lease was not released: %s", str(error) or f"no answer within {PARTING:.0f} s")

    async def _release(self) -> None:
        lease = await self._api.request("GET", f"{self._path}/{self._name}")
        if lease["spec"].get("holderIdentity") == self._identity:
            lease["spec"]["holderIdentity"] = ""
            await self._api.request("PUT", f"{self._path}/{self._name}", body=lease)

    @property
    def _left(self) -> float:
        """Seconds that this operator may still be the active one without a renewal."""
        return max(0.0, DEADLINE - (self._clock() - self._renewed))

    async def _tried(self, seconds: float) -> bool:
        """UnavailableError without an answer in so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self._try()
        except TimeoutError as error:
            raise UnavailableError(f"no answer within {seconds:.1f} s") from error

    async def _try(self) -> bool:
        """Take or renew it, where that is allowed."""
        try:
            lease = await self._api.request("GET", f"{self._path}/{self._name}")
        except GoneError:
            return await self._write("POST", self._path, {"metadata": {"name": self._name}}, 0)
        spec = lease.get("spec") or {}
        holder, renewal = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        if self._seen is None or (self._seen.holder, self._seen.renewal) != (holder, renewal):
            self._seen = ObservedLease(holder, renewal, self._clock())
        if not can_acquire(self._seen, self._identity, self._clock()):
            return False
        changes = int(spec.get("leaseTransitions") or 0) + (holder != self._identity)
        return await self._write("PUT", f"{self._path}/{self._name}", lease, changes)

    async def _write(self, method: str, path: str, lease: dict[str, Any], changes: int) -> bool:
        now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION),
            "renewTime": now,
            "leaseTransitions": changes,
        }
        body = {"apiVersion": _VERSION, "kind": "Lease", **lease, "spec": {**(lease.get("spec") or {}), **spec}}
        sent = self._clock()
        try:
            await self._api.request(method, path, body=body)
        except ConflictError:
            return False
        self._seen, self._renewed = ObservedLease(self._identity, now, sent), sent
        return True

    def _holder(self) -> str:
        return self._seen.holder if self._seen is not None and self._seen.holder else "another operator"

    @staticmethod
    def _say(words: str, said: str) -> str:
        if words != said:
            log.info("%s", words)
        return words
