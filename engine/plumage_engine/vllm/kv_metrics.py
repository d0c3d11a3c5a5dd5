"""The article's metrics of a running engine: hooks that report to `plumage.kv_metrics` what vLLM's scheduler did.

Prefill is counted when it is scheduled. A request's blocks that decoding filled are remembered when it is preempted or
ends. Blocks have hashes only with prefix caching; without it no work counts as repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any, Final

from plumage.kv_metrics import CONTEXTS, EvictionLatency, PrefillCost, PrefillWork, Saturation, SeenBlocks, UsageSums
from plumage.prometheus.histogram import Histogram
from plumage_engine.vllm.compat.kv_metrics import RequestStatus

if TYPE_CHECKING:
    from plumage.batching import StepOutcome
    from plumage_engine.vllm.compat.base import Request, Scheduler, SchedulerOutput

__all__ = ["SEEN_BLOCKS", "KvMetrics", "cost_of"]

SEEN_BLOCKS: Final = 1 << 20
"""Blocks that are remembered as computed: 4 MiB, 16 million tokens with blocks of 16."""
_MAX_STEPS = 64  # in flight, as in `step_times`


class KvMetrics:
    """wall: seconds of the clock that stamps vLLM's requests."""

    def __init__(self, scheduler: Scheduler, wall: Callable[[], float] = time) -> None:
        self.evictions = 0  # rises at the first eviction after an admission; more make no difference to latencies
        cost = cost_of(scheduler.vllm_config.model_config.hf_text_config)
        self.known_cost = cost is not None
        self.work = PrefillWork(cost or PrefillCost(0.0, 0.0), SeenBlocks(SEEN_BLOCKS), scheduler.hash_block_size)
        self.usage = UsageSums()
        self.saturation = Saturation()
        self.latency = EvictionLatency()
        self._scheduler = scheduler
        self._wall = wall
        self._states: deque[_State] = deque(maxlen=_MAX_STEPS)
        self._prompts: dict[str, int] = {}  # tokens of the running requests' prompts
        self._context = 0  # their sum
        self._prefilling: dict[str, bool] = {}  # whether the next step is the request's first since it joined
        self._reached: dict[str, int] = {}  # of running requests: the position that prefill has reached
        self._pool = scheduler.kv_cache_manager.block_pool

    def _watch_evictions(self) -> None:
        """Note the next eviction, by an attribute of the object: the order of eviction changes its class, and both must
        be removable. The hook removes itself, because a full cache evicts for each block."""
        self._pool._maybe_evict_cached_block = self._evict_noted

    def _evict_noted(self, block: Any) -> bool:
        evicted: bool = type(self._pool)._maybe_evict_cached_block(self._pool, block)
        if evicted:
            self.evictions += 1
            self.restore()
        return evicted

    def restore(self) -> None:
        """Remove the hook of the block pool. It runs inside vLLM's allocation, where an error would end the engine, so
        a hook that something else removed is no error."""
        vars(self._pool).pop("_maybe_evict_cached_block", None)

    def scheduled(self, output: SchedulerOutput) -> None:
        """vLLM has scheduled a step, and has added its tokens to the requests' computed ones."""
        scheduler, preempted = self._scheduler, output.preempted_req_ids
        if preempted:
            for request_id in preempted:
                self._left(request_id)
        new, resumed = output.scheduled_new_reqs, output.scheduled_cached_reqs.resumed_req_ids
        if new or resumed:
            for one in new:
                self._joined(one.req_id)
            for request_id in resumed:
                self._joined(request_id)
            self._watch_evictions()
        finished = 0
        if self._prefilling or output.total_num_scheduled_tokens != len(output.num_scheduled_tokens):
            finished = self._prefilled(output)  # other steps only decode, a token for each request
        usage, running = scheduler.kv_cache_manager.usage, len(scheduler.running)
        self._states.append((output, usage, running, self._context, len(preempted or ()), finished))

    def _joined(self, request_id: str) -> None:
        tokens = self._scheduler.requests[request_id].num_prompt_tokens
        self._context += tokens - self._prompts.get(request_id, 0)
        self._prompts[request_id] = tokens
        self._prefilling[request_id] = True
        self.latency.admitted(request_id, self.evictions)

    def _prefilled(self, output: SchedulerOutput) -> int:
        """Count the step's prefill. Returns how many prompts it completes, but for those of one token, which count as
        decoding."""
        scheduled, prefilling = output.num_scheduled_tokens, self._prefilling
        of_prefill = [name for name in prefilling if name in scheduled] if prefilling else []
        rest = output.total_num_scheduled_tokens - sum([scheduled[name] for name in of_prefill])
        if rest != len(scheduled) - len(of_prefill):  # drafts, or blocks that must be computed again
            of_prefill += [name for name, tokens in scheduled.items() if tokens > 1 and name not in prefilling]
        return sum([self._prefilled_one(output, name) for name in of_prefill])

    def _prefilled_one(self, output: SchedulerOutput, request_id: str) -> bool:
        """Count one request's part of the step. Returns whether it completes the prompt."""
        request, tokens = self._scheduler.requests[request_id], output.num_scheduled_tokens[request_id]
        start, known, work = request.num_computed_tokens - tokens, request.num_tokens, self.work
        end = min(start + tokens, known)
        first = self._prefilling.pop(request_id, False)
        if end < known - 1:
            self._prefilling[request_id] = False
        if start >= known - 1 and not first:
            return False  # a token with drafts, or the prompt's last
        work.prefilled(start, end, _names(request.block_hashes[work.touched(start, end)]))
        self._reached[request_id] = end
        # A prompt's end with drafts counts as decoding.
        return tokens > 1 and end == known and request_id not in output.scheduled_spec_decode_tokens

    def _left(self, request_id: str) -> None:
        """A request is no longer running. Its last token has no KV. A last chunk of one token is not in `_reached`."""
        self._context -= self._prompts.pop(request_id, 0)
        self._prefilling.pop(request_id, None)
        reached = self._reached.pop(request_id, None)
        request = self._scheduler.requests.get(request_id)
        if request is not None and reached is not None and reached >= request.num_prompt_tokens - 1:
            end = max(reached, request.num_tokens - 1)
            size = self._scheduler.hash_block_size
            self.work.decoded(_names(request.block_hashes[reached // size : end // size]))

    def ended(self, output: SchedulerOutput, outcome: StepOutcome | None) -> None:
        """The device has finished the step. outcome: None for a step without tokens."""
        while self._states:
            of, usage, running, context, preempted, finished = self._states.popleft()
            if of is output:
                if outcome is not None:
                    self.usage.add(outcome.seconds, usage)
                    tokens = outcome.decode_tokens + finished
                    self.saturation.step(outcome.seconds, running, context, tokens, preempted)
                return

    def request_ended(self, request: Request) -> None:
        """A request was finished or aborted, in any state. vLLM still knows it."""
        name = request.request_id
        self._left(name)
        if request.status is RequestStatus.FINISHED_ABORTED:
            self.latency.dropped(name)
        else:
            self.latency.ended(name, self.evictions, self._wall() - request.arrival_time)

    def report(self) -> dict[str, Any]:
        """The figures for stats, as JSON."""
        best = {context: self.saturation.best(context) for context in CONTEXTS}
        return {
            "prefillFlops": self.work.total,
            "repeatedPrefillFlops": self.work.repeated,
            "stepSeconds": self.usage.seconds,
            "usageSeconds": self.usage.usage,
            "usageSquaredSeconds": self.usage.squared,
            "batches": [
                [context, batch, cell.tokens, cell.seconds] for context, batch, cell in self.saturation.cells()
            ],
            "best": {context: found for context, found in best.items() if found is not None},
            "requestSeconds": {
                "true": _histogram(self.latency.under),
                "false": _histogram(self.latency.without),
            },
        }


_State = tuple["SchedulerOutput", float, int, int, int, int]


def cost_of(config: Any) -> PrefillCost | None:
    """FLOPs by a model's configuration, with Hugging Face's names. None where it lacks a width."""
    heads, hidden = _width(config, "num_attention_heads"), _width(config, "hidden_size")
    layers, experts = _width(config, "num_hidden_layers"), _width(config, "num_experts_per_tok")
    intermediate = _width(config, *(("moe_intermediate_size",) if experts else ()), "intermediate_size")
    if heads is None or hidden is None or layers is None or intermediate is None:
        return None
    return PrefillCost.of_model(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_width(config, "num_key_value_heads") or heads,
        head_size=_width(config, "head_dim") or hidden // heads,
        intermediate=intermediate,
        experts=experts or 1,
    )


def _width(config: Any, *names: str) -> int | None:
    """The first of these attributes that is a positive integer."""
    found = (getattr(config, name, None) for name in names)
    return next((one for one in found if isinstance(one, int) and one > 0), None)


def _names(hashes: Sequence[bytes]) -> list[int]:
    """The first eight bytes of each hash. All hashes have the same size, a multiple of eight."""
    return memoryview(b"".join(hashes)).cast("Q")[:: len(hashes[0]) // 8].tolist() if hashes else []


def _histogram(found: Histogram) -> Mapping[str, Any]:
    ends = [*(str(bound) for bound in found.bounds), "+Inf"]
    return {"buckets": list(zip(ends, found.cumulative, strict=True)), "sum": found.sum}
