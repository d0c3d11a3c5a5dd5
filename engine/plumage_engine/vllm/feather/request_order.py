"""vLLM's requests in the order of one of core's batching policies (FEATHER §4.3; decision 0095).

vLLM pops a request for two reasons, and tells neither: to admit it, or to put it aside for this step because it cannot
run yet (its grammar compiles, its adapter has no slot, its KV is on its way). So a popped request is *open* until the
next question shows whether it runs. What was put aside comes back ahead of the policy's choice, as in vLLM's own queue,
and so do preempted requests.

The policy's active requests are vLLM's running ones. Each admission and each end is told as it happens; `match` mends
what came another way (a streaming session that waits for its next input, requests whose KV was loaded from outside).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from plumage.batching import BatchQueue, Candidate, StepOutcome
from plumage_engine.vllm.counters import Counters

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.scheduler import Request

__all__ = ["RequestOrder"]

_TOGETHER = 64  # steps at most
_LONGEST_GROUP = 256  # characters
_GROUP_BITS = 64


class RequestOrder:
    """queue: the policy. block_tokens: tokens that one of a request's hashes covers; stride: hashes a level of the
    policy's vectors. max_wait: the policy's ageing bound in seconds. clock: seconds, monotonic; waiting is timed from
    the moment a request enters."""

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
        self._candidates: dict[str, Candidate] = {}  # of all that wait, run or are put aside
        self._waiting: dict[str, Request] = {}  # the policy has these and chooses among them
        self._ahead: OrderedDict[str, Request] = OrderedDict()  # preempted or put aside: before the policy's choice
        self._active: set[str] = set()
        self._open: Request | None = None
        self._asked = False  # whether the policy was asked before the step that runs
        self._untold: StepOutcome | None = None  # the sum of steps before which it was not
        self._open_waits = False  # whether the policy still has it as waiting: not if it was ahead

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ahead)

    def __iter__(self) -> Iterator[Request]:
        yield from self._ahead.values()
        yield from self._waiting.values()

    @property
    def active(self) -> int:
        """Requests that the policy believes to run."""
        return len(self._active)

    def insert(self, request: Request) -> None:
        """A new request waits, or a session's next input."""
        request_id = request.request_id
        if request_id in self._candidates:
            self.end(request_id)
        candidate = self._candidates[request_id] = self._candidate(request)
        self.queue.insert(candidate)
        self._waiting[request_id] = request

    def put_back(self, request: Request) -> None:
        """A request that ran, or was popped, waits again, ahead of all others."""
        request_id = request.request_id
        if request is self._open:
            self._close(admitted=False)
        if request_id in self._active:
            self._active.discard(request_id)
            self.queue.finish(request_id)
        if request_id not in self._candidates:
            self._candidates[request_id] = self._candidate(request)
        self._ahead[request_id] = request
        self._ahead.move_to_end(request_id, last=False)

    def remove(self, request: Request) -> None:
        """A waiting request was aborted; absent ones are tolerated."""
        request_id = request.request_id
        if self._waiting.pop(request_id, None) is not None:
            self.queue.remove(request_id)
        elif self._ahead.pop(request_id, None) is None:
            return
        self._candidates.pop(request_id, None)

    def end(self, request_id: str) -> None:
        """A request is over, wherever it was."""
        if self._candidates.pop(request_id, None) is None:
            return
        if self._open is not None and self._open.request_id == request_id:
            self._close(admitted=False)
        if request_id in self._active:
            self._active.discard(request_id)
            self.queue.finish(request_id)

    def choose(self, running: list[Request]) -> Request | None:
        """The request to admit next, or None for STOP; never None while requests wait and nothing runs."""
        if self._open is not None:
            self._settle(running)
        self._tell_steps()
        self._asked = True
        if self._ahead:
            return next(iter(self._ahead.values()))
        if not self._waiting:
            return None
        request_id = self.queue.select(self._clock())
        if request_id is None:
            return None if running else next(iter(self._waiting.values()))
        return self._waiting[request_id]  # type: ignore[index]  # ids are those of `insert`

    def pop(self, request: Request) -> None:
        """vLLM takes `request`, which was chosen, out of the queue."""
        request_id = request.request_id
        self._open_waits = self._waiting.pop(request_id, None) is not None
        if not self._open_waits:
            del self._ahead[request_id]
        self._open = request

    def _settle(self, running: list[Request]) -> None:
        """Learn what became of the open request: an admitted one is the last of `running`."""
        self._close(admitted=bool(running) and running[-1] is self._open)

    def match(self, running: list[Request]) -> None:
        """Let the policy's active requests be `running`. O(1) where they are as many."""
        if self._open is not None:
            self._settle(running)
        if len(running) == len(self._active) and (not running or running[-1].request_id in self._active):
            return
        now = {request.request_id for request in running}
        for request_id in self._active - now:
            self._active.discard(request_id)
            self.queue.finish(request_id)
        for request in running:
            if request.request_id not in self._active:
                self._start(request, waits=self._waiting.pop(request.request_id, None) is not None)

    def take_over(self, before: RequestOrder, running: list[Request]) -> None:
        """Go on, between two steps, where another order stood: who waits there waits here, since then, and the same
        requests run. This one is new; `before` is not asked again."""
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

    def _adopt(self, request: Request, before: RequestOrder) -> Candidate:
        """Its vector anew, for levels may have another size."""
        candidate, known = self._candidate(request), before._candidates.get(request.request_id)
        if known is not None:
            candidate = candidate._replace(arrival=known.arrival)
        self._candidates[request.request_id] = candidate
        return candidate

    def observe(self, outcome: StepOutcome) -> None:
        """A step ran. Steps without prefill before which the policy was not asked are most of a full batch's: it is
        told their sum, at the latest before its next answer."""
        kept = self._untold
        if self._asked or outcome.prefill_tokens or (kept is not None and kept.steps >= _TOGETHER):
            self._tell_steps()
            self.queue.observe(outcome)
            self._asked = False
        elif kept is None:
            self._untold = outcome
        else:
            seconds, decoded = kept.seconds + outcome.seconds, kept.decode_tokens + outcome.decode_tokens
            self._untold = StepOutcome(seconds, decoded, steps=kept.steps + 1)

    def _tell_steps(self) -> None:
        if self._untold is not None:
            self.queue.observe(self._untold)
            self._untold = None

    def _close(self, *, admitted: bool) -> None:
        request, self._open = self._open, None
        assert request is not None
        if admitted:
            self._start(request, waits=self._open_waits)
        elif self._open_waits:
            self.queue.remove(request.request_id)

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
        """The request runs. The policy may not have it as waiting: it was put aside, preempted, or never came here."""
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
        """Frozen at INSERT: vLLM's own list of hashes grows with the output. The prompt's last, partial block has no
        hash, so prompts that differ in it alone look equal."""
        blocks = request.num_prompt_tokens // self._block_tokens
        vector = tuple(request.block_hashes[self._stride - 1 : blocks : self._stride])
        return Candidate(request.request_id, vector, request.num_prompt_tokens, self._clock(), _group(request))


def _group(request: Request) -> str | int | None:
    """The group that a client gave in `extra_args`, for policies of your own. A client may send anything there
    (`vllm_xargs`): what is no name or number of a fair size is as if it were not there."""
    parameters = request.sampling_params
    extra = parameters.extra_args if parameters is not None else None
    group = extra.get("plumage_group") if isinstance(extra, dict) else None
    if isinstance(group, str):
        return group if len(group) <= _LONGEST_GROUP else None
    return group if isinstance(group, int) and group.bit_length() <= _GROUP_BITS else None
