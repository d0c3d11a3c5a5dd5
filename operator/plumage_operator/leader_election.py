"""Leader election: of several operators, the one that holds the Lease is active.

As in client-go, time is this machine's monotonic clock since it saw a renewal. The clocks of two machines are never
compared, so a clock that is an hour off neither steals the Lease nor holds it for ever. The holder counts from when it
sent its last renewal, which is never later than when another can have seen it.
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

DURATION: Final = 15.0  # seconds without a renewal after which another operator may take it

DEADLINE: Final = 10.0  # seconds without a renewal after which its holder exits, well before DURATION

RETRY: Final = 2.0

RELEASE_TIMEOUT: Final = 3.0  # seconds for the release at shutdown, within the pod's grace period

_VERSION: Final = "coordination.k8s.io/v1"


class LeaseLostError(ApiError):
    """Another operator may be active now: this one must exit at once."""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """The Lease when it was last seen to change. at: monotonic seconds."""

    holder: str
    renewal: str
    at: float


def can_acquire(seen: ObservedLease | None, identity: str, now: float) -> bool:
    """Whether the Lease is free, ours, or abandoned."""
    return seen is None or seen.holder in ("", identity) or now - seen.at > DURATION


class LeaderElector:
    """identity: this operator's, unique among operators.

    clock: monotonic seconds.
    wall: seconds since 1970, written for people to read and never compared.
    """

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
        last = ""
        while True:
            alive()
            try:
                if await self._try_within(DEADLINE):
                    return
                last = self._log_once(f"waiting: {self._holder()} is active", last)
            except ApiError as error:
                last = self._log_once(f"can't reach the Lease: {error}", last)
            await self._sleep(RETRY)

    async def hold(self) -> None:
        """Renews the Lease for ever. Raises LeaseLostError when it can't."""
        while True:
            await self._sleep(min(RETRY, self._left))
            try:
                if not await self._try_within(self._left) and self._holder() != self._identity:
                    raise LeaseLostError(f"{self._holder()} took the Lease")
            except LeaseLostError:
                raise
            except ApiError as error:
                log.warning("can't renew the Lease: %s", error, extra=cause("lease"))
            if self._left == 0.0:
                raise LeaseLostError(f"the Lease could not be renewed for {DEADLINE:.0f} s")

    async def release(self) -> None:
        """Lets the next operator start at once. If that fails, the Lease expires."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await self._release()
        except (ApiError, TimeoutError) as error:
            log.info("the Lease was not released: %s", str(error) or f"no answer within {RELEASE_TIMEOUT:.0f} s")

    async def _release(self) -> None:
        lease = await self._api.request("GET", f"{self._path}/{self._name}")
        if lease["spec"].get("holderIdentity") == self._identity:
            lease["spec"]["holderIdentity"] = ""
            await self._api.request("PUT", f"{self._path}/{self._name}", body=lease)

    @property
    def _left(self) -> float:
        """Seconds that this operator may stay active without a renewal."""
        return max(0.0, DEADLINE - (self._clock() - self._renewed))

    async def _try_within(self, seconds: float) -> bool:
        """Tries once. Raises UnavailableError without an answer in so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self._try()
        except TimeoutError as error:
            raise UnavailableError(f"no answer within {seconds:.1f} s") from error

    async def _try(self) -> bool:
        """Takes or renews the Lease, if that is allowed."""
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
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self._identity)
        return await self._write("PUT", f"{self._path}/{self._name}", lease, transitions)

    async def _write(self, method: str, path: str, lease: dict[str, Any], transitions: int) -> bool:
        now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION),
            "renewTime": now,
            "leaseTransitions": transitions,
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
    def _log_once(message: str, last: str) -> str:
        if message != last:
            log.info("%s", message)
        return message
