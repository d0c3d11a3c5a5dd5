"""Copies of a gateway's requests for second pools (`requestMirror`), within bounds that protect the clients' requests.

A copy is made once the client's request was sent to its replica, so the request never waits for it. Copies are read one
at a time, a slice in a turn of the loop, and large bodies of clients do not queue behind them. At most an eighth
of the requests that may be in flight are copies, with an eighth of the memory for bodies. What does not fit is dropped,
and counted. A copy outlives its request: also if that client leaves, the answers of both pools stay comparable.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from plumage.settings.router_config import LimitsConfig
from plumage_router.http.body_memory import BodyMemory, BodyReservation
from plumage_router.http.request import Request
from plumage_router.http.time_slicing import TimeSlicer
from plumage_router.pool_router import PoolRouter
from plumage_router.proxy.copied_request import CopiedRequest, CopyOutcome

if TYPE_CHECKING:
    from plumage_router.proxy.tracing import RequestTrace

__all__ = ["RequestCopies", "most_copies"]

log = logging.getLogger(__name__)

_SHARE: Final = 8  # 1/8 of the requests in flight


def most_copies(limits: LimitsConfig) -> int:
    """Returns how many copies may be in flight."""
    return max(1, limits.max_in_flight // _SHARE)


class RequestCopies:
    """find: the pool of a name, None where it is not served. `outcomes`: copies by model, pool and outcome."""

    def __init__(
        self, memory: BodyMemory, find: Callable[[str], PoolRouter | None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.outcomes: Counter[tuple[str, ...]] = Counter()
        self.most = 0
        self._memory = memory
        self._find = find
        self._loop = loop
        self._slicer = TimeSlicer(loop, alone=True)
        self._open: dict[CopiedRequest, PoolRouter] = {}

    def __len__(self) -> int:
        """Copies in flight."""
        return len(self._open)

    def plan(self, request: Request, model: str, pool: str) -> None:
        """Has the request copied to the pool once a replica has it."""
        request.copy = partial(self._send, model, pool)

    def cancel(self, pool: PoolRouter | None = None) -> None:
        """Cancels the copies for the pool, by default for all."""
        for copy in [copy for copy, its in self._open.items() if pool is None or its is pool]:
            copy.cancel(CopyOutcome.CANCELED)

    def _send(self, model: str, pool: str, request: Request, request_id: str, trace: RequestTrace | None) -> None:
        """Never raises: the caller has just sent the client's request."""
        try:
            dropped = self._try_send(model, pool, request, request_id, trace)
        except Exception:
            log.exception("request %s: copying it failed", request_id)
            dropped = CopyOutcome.FAILED
        if dropped is not None:
            self.outcomes[model, pool, dropped] += 1

    def _try_send(
        self, model: str, name: str, request: Request, request_id: str, trace: RequestTrace | None
    ) -> CopyOutcome | None:
        """Why the copy is dropped; None if it is on its way."""
        pool = self._find(name)
        if not request.body:  # it failed as it was sent
            return None
        if pool is None:
            return CopyOutcome.NO_REPLICA
        if len(self._open) >= self.most:
            return CopyOutcome.FULL
        body = BodyReservation()
        if not self._memory.reserve_copy(body, len(request.body)):
            return CopyOutcome.MEMORY
        copy = CopiedRequest(
            pool,
            _copy_of(request),
            request_id,
            original=trace,
            slicer=self._slicer,
            ended=partial(self._ended, model, name),
            freed=partial(self._memory.release_copy, body),
        )
        body.evict = partial(copy.cancel, CopyOutcome.MEMORY)
        self._open[copy] = pool
        self._loop.call_soon(copy.start)
        return None

    def _ended(self, model: str, pool: str, copy: CopiedRequest, outcome: CopyOutcome) -> None:
        self._open.pop(copy, None)
        self.outcomes[model, pool, outcome] += 1


def _copy_of(request: Request) -> Request:
    """Returns the same request for another pool. It has the same bytes, which are not copied."""
    copy = Request(request.sender)
    copy.method, copy.target, copy.headers = request.method, request.target, request.headers
    copy.tenant, copy.size, copy.is_completion = request.tenant, request.size, True
    copy.body = request.body.share()
    return copy
