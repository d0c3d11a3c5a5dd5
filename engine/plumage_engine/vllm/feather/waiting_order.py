"""Orders vLLM's waiting requests by a batching policy of core (FEATHER §4.3; decision 0095).

vLLM pops a request for two reasons and reports neither. It admits the request, or puts it aside for this step because
it can't run yet. For example its grammar compiles, its adapter has no slot, or its KV is being loaded. So a popped
request is *open* until the next question shows whether it runs. Requests that were put aside or preempted precede the
policy's choice, as in vLLM's own queue.

The policy's active requests are vLLM's running ones. Each admission and each end is reported as it happens. `match`
corrects the rest: a streaming session that waits for its next input, and requests whose KV was loaded from outside.
Decision 0244 explains why a waiting request is kept here and in the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from plumage.batching import BatchQueue, Candidate, StepOutcome
from plumage_engine.vllm.counters import Counters

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.scheduler import Request

__all__ = ["WaitingOrder"]

_MAX_SUMMED_STEPS = 64
_MAX_GROUP = 256  # characters
_GROUP_BITS = 64


class WaitingOrder:
    """queue: the policy.
    block_tokens: tokens that one of a request's hashes covers.
    stride: hashes in a level of the policy's vectors.
    max_wait: the policy's ageing bound in seconds, from the moment a request enters.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        queue: BatchQueue,
        *,
        block_tokens: int,
        stride: int,
        max_wait: float,
        clock: Callable[[], float],
        counters: Counters,
    ) -> None:
        self.queue = queue
        self._block_tokens = block_tokens
        self._stride = stride
        self._max_wait = max_wait
        self._clock = clock
        self._counters = counters
        self._candidates: dict[str, Candidate] = {}  # of all requests that wait, run or were put aside
        self._waiting: dict[str, Request] = {}  # the policy chooses among these
        self._ahead: OrderedDict[str, Request] = OrderedDict()  # preempted or put aside: before the policy's choice
        self._active: set[str] = set()
        self._open: Request | None = None
        self._asked = False  # whether the policy was asked before the running step
        self._unreported = 0  # steps that were not reported yet, and the sums of their seconds and tokens
        self._seconds, self._decoded = 0.0, 0
        self._open_waits = False  # whether the policy has the open request as waiting: not if it was ahead

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ahead)

    def __iter__(self) -> Iterator[Request]:
        yield from self._ahead.values()
        yield from self._waiting.values()

    @property
    def active(self) -> int:
        """Requests that run according to the policy."""
        return len(self._active)

    def insert(self, request: Request) -> None:
        """Adds a new request, or a session's next input."""
        request_id = request.request_id
        if request_id in self._candidates:
            self.end(request_id)
        candidate = self._candidates[request_id] = self._candidate(request)
        self.queue.insert(candidate)
        self._waiting[request_id] = request

    def put_back(self, request: Request) -> None:
        """Has a request that ran or was popped wait again, ahead of all others."""
        request_id = request.request_id
        if request is self._open:
            self._close_open([])
        if request_id in self._active:
            self._active.discard(request_id)
            self.queue.finish(request_id)
        if request_id not in self._candidates:
            self._candidates[request_id] = self._candidate(request)
        self._ahead[request_id] = request
        self._ahead.move_to_end(request_id, last=False)

    def remove(self, request: Request) -> None:
        """Removes an aborted waiting request; unknown ones are ignored."""
        request_id = request.request_id
        if self._waiting.pop(request_id, None) is not None:
            self.queue.remove(request_id)
        elif self._ahead.pop(request_id, None) is None:
            return
        self._candidates.pop(request_id, None)

    def end(self, request_id: str) -> None:
        """Ends a request in any state."""
        if self._candidates.pop(request_id, None) is None:
            return
        if self._open is not None and self._open.request_id == request_id:
            self._close_open([])
        if request_id in self._active:
            self._active.discard(request_id)
            self.queue.finish(request_id)

    def choose(self, running: list[Request]) -> Request | None:
        """The request to admit next, or None for STOP; never None while requests wait and no request runs."""
        if self._open is not None:
            self._close_open(running)
        if self._unreported:
            self._report_steps()
        self._asked = True
        if self._ahead:
            return next(iter(self._ahead.values()))
        if not self._waiting:
            return None
        request_id = self.queue.select(self._clock())
        if request_id is None:
            return None if running else next(iter(self._waiting.values()))
        return self._waiting[request_id]  # type: ignore[index]  # ids come from `insert`

    def pop(self, request: Request) -> None:
        """vLLM takes `request`, which was chosen, out of the queue."""
        request_id = request.request_id
        self._open_waits = self._waiting.pop(request_id, None) is not None
        if not self._open_waits:
            del self._ahead[request_id]
        self._open = request

    def _close_open(self, running: list[Request]) -> None:
        """Decide whether the open request was admitted: then it is the last of `running`."""
        request, self._open = self._open, None
        assert request is not None
        if running and running[-1] is request:
            self._start(request, waits=self._open_waits)
        elif self._open_waits:
            self.queue.remove(request.request_id)

    def match(self, running: list[Request]) -> None:
        """Make the policy's active requests equal to `running`. O(1) where their numbers are equal."""
        if self._open is not None:
            self._close_open(running)
        if len(running) == len(self._active) and (not running or running[-1].request_id in self._active):
            return
        now = {request.request_id for request in running}
        for request_id in self._active - now:
            self._active.discard(request_id)
            self.queue.finish(request_id)
        for request in running:
            if request.request_id not in self._active:
                self._start(request, waits=self._waiting.pop(request.request_id, None) is not None)

    def take_over(self, before: WaitingOrder, running: list[Request]) -> None:
        """Replace another order between two steps: the same requests wait, since the same time, and the same run.

        This order is new; `before` is not used again.
        """
        before.match(running)
        for request in before:
            candidate = self._adopt(request, before)
            if request.request_id in before._ahead:
                self._ahead[request.request_id] = request
            else:
                self.queue.insert(candidate)
                self._waiting[request.request_id] = request
        for request in running:
            self._adopt(request, before)
            self._activate(request, waits=False)

    def _adopt(self, request: Request, before: WaitingOrder) -> Candidate:
        """Compute the request's vector again, because levels may have another size; keep its arrival."""
        candidate, known = self._candidate(request), before._candidates.get(request.request_id)
        if known is not None:
            candidate = candidate._replace(arrival=known.arrival)
        self._candidates[request.request_id] = candidate
        return candidate

    def observe(self, outcome: StepOutcome) -> None:
        """A step ran.

        Most steps of a full batch have no prefill and no question to the policy before them. Their sum is reported to
        the policy, at the latest before its next choice.
        """
        if self._asked or outcome.prefill_tokens or self._unreported >= _MAX_SUMMED_STEPS:
            self._report_steps()
            self.queue.observe(outcome)
            self._asked = False
        else:
            self._unreported += 1
            self._seconds += outcome.seconds
            self._decoded += outcome.decode_tokens

    def _report_steps(self) -> None:
        if self._unreported:
            outcome = StepOutcome(self._seconds, self._decoded, steps=self._unreported)
            self._unreported, self._seconds, self._decoded = 0, 0.0, 0
            self.queue.observe(outcome)

    def _start(self, request: Request, *, waits: bool) -> None:
        """The request was admitted."""
        before = self.queue.tip_loss
        candidate = self._activate(request, waits=waits)
        if lost := self.queue.tip_loss - before:
            self._counters.add("tip_loss", lost)
        self._counters.add("admissions")
        if self._clock() - candidate.arrival >= self._max_wait:
            self._counters.add("aged")

    def _activate(self, request: Request, *, waits: bool) -> Candidate:
        """The request runs. `waits`: the policy has it as waiting, so it was not put aside, preempted or started
        elsewhere.
        """
        request_id = request.request_id
        candidate = self._candidates.get(request_id)
        if candidate is None:
            candidate = self._candidates[request_id] = self._candidate(request)
        if not waits:
            self.queue.insert(candidate)
        self.queue.add(request_id)
        self._active.add(request_id)
        return candidate

    def _candidate(self, request: Request) -> Candidate:
        """The request as the policy sees it, frozen at its insertion: vLLM's list of hashes grows with the output.

        The prompt's last, partial block has no hash, so prompts that differ only there look equal.
        """
        blocks = request.num_prompt_tokens // self._block_tokens
        vector = tuple(request.block_hashes[self._stride - 1 : blocks : self._stride])
        return Candidate(request.request_id, vector, request.num_prompt_tokens, self._clock(), _group(request))


def _group(request: Request) -> str | int | None:
    """The group that a client gave in `extra_args` (`vllm_xargs`), for custom policies.

    A client may send anything there; a value that is no short name or number is ignored.
    """
    parameters = request.sampling_params
    extra = parameters.extra_args if parameters is not None else None
    group = extra.get("plumage_group") if isinstance(extra, dict) else None
    if isinstance(group, str):
        return group if len(group) <= _MAX_GROUP else None
    return group if isinstance(group, int) and group.bit_length() <= _GROUP_BITS else None
