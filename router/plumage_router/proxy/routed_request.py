"""The steps that every completion takes, sent to the engine by this router or by a proxy.

read → accept → quota → candidates → room → decision; and at the end its books: queues, the tenant's use, the record.
`ProxiedRequest` sends the request itself and may try another replica. `extproc.picked_request` gives a proxy the
replica's address.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from plumage_router.clock import monotonic
from plumage_router.fleet.replicas import Load, Replica
from plumage_router.http.errors import (
    RequestError,
    internal,
    no_replica,
    response_away,
    response_not_found,
    unknown_response,
)
from plumage_router.http.request import Request
from plumage_router.http.time_slicing import LARGE, SlicedWork, Steps, run_now
from plumage_router.proxy.flow_control import Passage, Spent
from plumage_router.proxy.pool_state import PoolState
from plumage_router.proxy.quotas import Spending
from plumage_router.proxy.tenant_usage import TokensUsed
from plumage_router.proxy.wait_queue import no_replica_yet
from plumage_router.request.prompt import Prompt
from plumage_router.request.usage import Usage
from plumage_router.routing.audit import Record
from plumage_router.routing.decider import Decision

__all__ = ["FAILED", "FINISHED", "Progress", "RoutedRequest"]

log = logging.getLogger(__name__)

FINISHED: Final = "Finished"
FAILED: Final = "Failed"
Only = Callable[[Sequence[Load]], Sequence[Load]]


class Progress(NamedTuple):
    """How far an engine's answer came.

    status: 0 before its head. began: the engine answers. first_at: when the first body byte came; None before.
    streams: it is a stream, of so many `events`. asked: the engine was asked for its counts, `usage`, which are there
    in a complete answer.
    """

    status: int
    began: bool
    first_at: float | None
    streams: bool
    events: int
    usage: Usage
    asked: bool


class RoutedRequest(ABC):
    """An `InFlightRequest` of the pool; a subclass sends it, and answers with `_fail` and `_end`.

    `arrived`: when its last byte came, in seconds of the router's clock.
    """

    __slots__ = (
        "_expected",
        "_explain",
        "_home",
        "_passage",
        "_passed",
        "_pool",
        "_prompt",
        "_reading",
        "_record",
        "_request",
        "_request_id",
        "_routable_at",
        "_spending",
        "_waited",
        "arrived",
    )

    def __init__(self, pool: PoolState, request: Request) -> None:
        self._pool = pool
        self._request = request
        self._request_id = ""
        self._prompt: Prompt | None = None
        self._reading: SlicedWork | None = None
        self._spending: Spending | None = None  # from the tenant's quotas
        self._record: Record | None = None
        self._expected = 0  # tokens of the prompt, as far as the router knows
        self._explain = False
        self._home: Replica | None = None  # stores the response that the request continues
        self._passage: Passage | None = None  # in the queue of flow control
        self._passed = False  # flow control sent it on
        self._waited = False  # in a queue
        self.arrived = self._routable_at = monotonic()

    # -- what differs -------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def replica(self) -> Replica | None:
        """The replica that has the request now."""

    @property
    @abstractmethod
    def answering(self) -> bool:
        """Whether the client got a part of the answer."""

    @abstractmethod
    def expire(self) -> None:
        """The request took longer than any request may."""

    @abstractmethod
    def leave_silent_replica(self) -> None:
        """The replica will send no first byte."""

    @abstractmethod
    def check_timeouts(self, now: float) -> None:
        """A stream must begin and continue in time."""

    @abstractmethod
    def _admit(self) -> Steps[Prompt]:
        """Checks the client and the router's load. Returns the steps that read the body. Raises RequestError."""

    @abstractmethod
    def _available(self, now: float, only: Only | None) -> Sequence[Load]:
        """The available replicas that may get the request. only: chooses those that have loaded its adapter."""

    @abstractmethod
    def _send_to(self, candidates: Sequence[Load], now: float) -> None:
        """Chooses one of the replicas, and sends the request there."""

    @abstractmethod
    def _may_wait(self, now: float) -> bool:
        """Whether the request may wait for a replica, since none can have it."""

    @abstractmethod
    def _fail(self, error: RequestError) -> None:
        """Ends the request with an error of the router's own."""

    def _check_failures(self, now: float) -> None:
        """Raises RequestError if replicas have failed on the request, and no other one can have it."""
        return

    def _why_none(self, now: float) -> str:
        """Why no replica is available."""
        return self._pool.fleet.why_none(now)

    # -- for the queues -----------------------------------------------------------------------------------------------

    def can_resume(self, now: float) -> bool:
        return bool(self._candidates(now))

    def resume_routing(self) -> None:
        self._route()

    def leave_queue(self) -> None:
        self._passed = True
        self._route()

    def turn_away(self, error: RequestError) -> None:
        self._fail(error)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads the body, at once or in slices, and routes the request. Raises RequestError."""
        pool, request, steps = self._pool, self._request, self._admit()
        size = len(request.body)
        if size > LARGE:
            pool.in_flight.add(self)
            self._reading = pool.time_slicer.add(size, steps, self._read_done, tenant=request.sender)
            return
        self._accept(run_now(steps))
        pool.in_flight.add(self)
        self._route_accepted()

    def _read_done(self, prompt: Prompt | None, error: Exception | None) -> None:
        """The body was read in slices."""
        self._reading = None
        try:
            if error is not None:
                raise error
            assert prompt is not None
            self._accept(prompt)
        except RequestError as wrong:
            self._fail(wrong)
        except Exception:
            log.exception("request %s: reading it failed", self._request_id)
            self._fail(internal())
        else:
            self._route_accepted()

    def _accept(self, prompt: Prompt) -> None:
        """The body was read. Raises RequestError if it is quarantined, or over its tenant's quota."""
        self._prompt = prompt
        self._pool.check_quarantine(prompt)
        self._expected = expected = self._pool.tokens_of_prompt(prompt)  # while its text is there
        self._passage = self._pool.classify(self._request, prompt, expected)
        self._spending = self._pool.spend(prompt, self._request.tenant, expected, self._quota_decided)

    def _quota_decided(self, error: RequestError | None) -> None:
        """The other routers' numbers came, or are not needed any more."""
        if error is not None:
            self._fail(error)
        else:
            self._routable_at = monotonic()
            self._route()

    def _route_accepted(self) -> None:
        if self._spending is None or not self._spending.waits:
            self._route()

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _route(self) -> None:
        """Sends the request to a replica, unless it must wait for one."""
        try:
            now = monotonic()
            candidates = self._candidates(now)
            if not candidates:
                self._without_replica(now)
                return
            roomy = self._with_room(candidates, now)
            if roomy is not None:
                self._send_to(roomy, now)
        except RequestError as error:
            self._fail(error)
        except Exception:
            log.exception("request %s: routing it failed", self._request_id)
            self._fail(internal())

    def _candidates(self, now: float) -> Sequence[Load]:
        """The available replicas that can answer."""
        pool, prompt = self._pool, self._prompt
        candidates = self._available(now, pool.with_adapter(prompt.adapter) if prompt is not None else None)
        if prompt is None or prompt.previous is None:
            return candidates
        if self._home is None or self._home.gone:
            self._home = pool.stores_previous(prompt)
        return [load for load in candidates if self._home is not None and load is self._home.load]

    def _with_room(self, candidates: Sequence[Load], now: float) -> Sequence[Load] | None:
        """The candidates that flow control allows; None while the request waits for one."""
        flow, passage = self._pool.flow_control, self._passage
        if passage is None:
            return candidates
        if self._passed:
            return flow.with_room(candidates, now)
        allowed = flow.enter(self, passage, candidates, now)
        self._passed, self._waited = allowed is not None, self._waited or allowed is None
        return allowed

    def _without_replica(self, now: float) -> None:
        """Waits if possible. Raises RequestError otherwise."""
        pool, prompt = self._pool, self._prompt
        by_id = prompt is not None and prompt.of_response
        if prompt is not None and prompt.previous is not None and self._home is None:
            raise response_not_found(prompt.previous) if by_id else unknown_response()
        if self._may_wait(now) and pool.wait_queue.add(self, now):
            self._waited = True
            return
        self._check_failures(now)
        if self._home is not None:
            param = "response_id" if by_id else "previous_response_id"
            raise response_away(self._home.reason(now) or "it is busy", param)
        if prompt is not None and prompt.adapter and self._lacks_adapter(prompt, now):
            raise pool.without_adapter(prompt, now)
        why = self._why_none(now)
        raise no_replica_yet(why) if pool.wait_queue.enabled else no_replica(why)

    def _lacks_adapter(self, prompt: Prompt, now: float) -> bool:
        """Whether replicas are available, and none that has loaded the prompt's adapter."""
        fleet, only = self._pool.fleet, self._pool.with_adapter(prompt.adapter)
        return bool(fleet.candidates(now)) and not fleet.candidates(now, only=only)

    def _note_decision(self, decision: Decision, now: float) -> Record:
        """Call once a decision is carried out. now: when it began. A retry has a record of its own."""
        pool, before = self._pool, self._record
        decided, began = monotonic(), now if self._waited else self.arrived
        pool.metrics.decision.observe(decided - (began if before is None else now))
        if before is None:
            broken, waited = pool.first_decision(decision, now), now - self._routable_at if self._waited else 0.0
        else:
            before.outcome = "Retried"
            broken, waited = before.prefix_break, before.waited_seconds
        record = self._record = pool.record_decision(decision, self._request_id, self._request.tenant)
        record.prefix_break = broken
        record.decision_seconds = decided - began
        record.waited_seconds = waited
        return record

    # -- the answer, and the end ---------------------------------------------------------------------------------------

    def _note_first_byte(self, prompt: Prompt, first_at: float, *, streams: bool) -> None:
        """The answer's first body byte came. streams: it was the first token."""
        if streams and prompt.measured:
            self._pool.metrics.ttft.observe(first_at - self.arrived)

    def _note_answer(self, prompt: Prompt, usage: Usage, last_at: float) -> None:
        """The answer is complete. last_at: when its last byte came."""
        self._pool.clear_quarantine(prompt)
        if prompt.measured:
            self._pool.metrics.latency.observe(last_at - self.arrived)
        record = self._record
        if record is not None and not prompt.of_response:  # its tokens were those of the request that made the response
            record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            record.output_tokens = usage.output_tokens

    def _close_books(self, outcome: str, progress: Progress | None) -> None:
        """Removes the request from the pool's books. progress: of its answer; None if no engine has the request."""
        pool, record = self._pool, self._record
        pool.in_flight.discard(self)
        if self._waited:
            pool.wait_queue.remove(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._passage is not None:
            pool.flow_control.end(self, _spent(self._passage, outcome, progress))
            self._passage = None
        self._count_tokens(outcome, progress)
        if record is None:
            return
        record.outcome = outcome
        if progress is not None and progress.first_at is not None:
            record.ttft = progress.first_at - self.arrived if progress.streams else None
            record.latency = monotonic() - self.arrived

    def _count_tokens(self, outcome: str, progress: Progress | None) -> None:
        """Counts what the request used for its tenant. A quota counts all that the request may use where an answer did
        not report it: one that is no stream, and a complete one whose engine was asked."""
        pool, prompt, used = self._pool, self._prompt, self._tokens_used(outcome, progress)
        answered = progress is not None and (outcome == FINISHED or progress.began)
        if used is not None and answered and prompt is not None and prompt.uses_device:
            pool.count_usage(self._request.tenant, prompt.model, used)
        spending, self._spending = self._spending, None
        if spending is None:
            return
        unknown = False
        if used is not None and used.estimated and progress is not None and progress.began:
            unknown = not progress.streams or (outcome == FINISHED and progress.asked)
        spending.end(None if unknown else used.total if used is not None else 0)

    def _tokens_used(self, outcome: str, progress: Progress | None) -> TokensUsed | None:
        """None if an engine refused the request, or never had it. Where the engine did not report its count, the
        router's estimate of the prompt is taken, and each event that the client got is a token."""
        if progress is None or outcome == FAILED or progress.status >= 400:
            return None
        prompt, usage = self._prompt, progress.usage
        background = prompt is not None and prompt.background
        if usage.prompt_tokens is not None and not background:
            return TokensUsed(usage.prompt_tokens, usage.cached_tokens or 0, usage.output_tokens or 0, estimated=False)
        output = progress.events if progress.streams else 0
        if prompt is not None and background:  # it repeats the client's tools, where any number may stand
            output = self._pool.tokens_of_answer(prompt)
        return TokensUsed(self._expected, 0, output, estimated=True)

    @property
    def _tenant_name(self) -> str | None:
        """For the access log."""
        return (self._request.tenant.name if self._request.tenant else "") or None


def _spent(passage: Passage, outcome: str, progress: Progress | None) -> Spent | None:
    """What the engine computed, for flow control; None if nobody knows. An event of a stream counts as a token."""
    if progress is None or outcome == FAILED or progress.status >= 400:
        return Spent(0, 0, complete=False)
    usage = progress.usage
    if outcome == FINISHED:
        if usage.prompt_tokens is None:
            return None
        computed = max(0, usage.prompt_tokens - (usage.cached_tokens or 0))
        return Spent(computed, usage.output_tokens or 0, complete=True)
    return Spent(passage.prompt_tokens, progress.events, complete=False) if progress.first_at is not None else None
