"""The simulated engine: continuous batching over a block pool with a prefix cache, and a cost model for time.

It does what vLLM's scheduler and KV cache manager do, step by step, without a clock, a network or a model:
- Running requests come first: one token each for those that decode, a chunk for those in prefill. Waiting requests
  follow in the order of the batching policy, within a token budget and a limit of running requests.
- Blocks are cached when they are scheduled, so a request that is admitted in the same step finds them.
- A prompt that is completely cached recomputes its last block. That block is computed and published twice, as are the
  blocks of equal answers that decode at the same time.
- A request is admitted only if its whole prompt fits beside the blocks in use.
- A request whose LoRA adapter has no slot is put aside for this step, and others go first.
- When no block is free the youngest running request is preempted. It waits at the front of the queue and starts over
  from its cached blocks. Nothing is admitted in that step.

Use: `step(now)` schedules a step and reports its duration. The next `step`, or `end_step(now)`, ends it. In between
requests may be submitted and aborted; a request that is submitted during a step is considered in the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from plumage.batching import make_queue
from plumage.batching.interface import RequestId, StepOutcome
from plumage.batching.limit import BatchLimit
from plumage.blocks.events import EventSink
from plumage.blocks.pool import BlockPool
from plumage.errors import StateError
from plumage.eviction import make_policy
from plumage_engine.simulator.engine.decodes import Decodes
from plumage_engine.simulator.engine.device import StepShape
from plumage_engine.simulator.engine.host_link import HostLink
from plumage_engine.simulator.engine.request import Counters, Load, SimRequest, State, StepReport, Tracked
from plumage_engine.simulator.engine.settings import EngineSettings

__all__ = ["SimEngine"]


class _Step:
    """A step that has not ended: its shape, and what changes when it ends."""

    __slots__ = ("ending", "prefilled", "report", "shape")

    def __init__(self) -> None:
        self.shape = StepShape()
        self.report = StepReport()
        self.prefilled: list[Tracked] = []  # prompts whose last chunk is in this step
        self.ending: list[Tracked] = []  # decodes with their last token in this step


class SimEngine:
    """One engine. rng: the randomness of its policies. sink: gets every event of its block pool.

    Deterministic: the same settings, seed and sequence of calls give the same reports and events.
    """

    def __init__(self, settings: EngineSettings, *, rng: Random, sink: EventSink | None = None) -> None:
        self.settings = settings
        self.counters = Counters()
        self._rng = rng
        policy = make_policy(settings.eviction, capacity=settings.cache_blocks, rng=rng, **settings.eviction_options)
        self.host = _host_link(settings, rng, sink)
        if self.host is None:
            self.pool = BlockPool(settings.cache_blocks, policy, sink)
        else:
            self.pool = BlockPool(settings.cache_blocks, self.host.recorded(policy), sink, self.host.evicted)
        self.queue = make_queue(settings.queue, rng=rng, **settings.queue_options)
        self._requests: dict[RequestId, Tracked] = {}
        self._running: dict[RequestId, Tracked] = {}  # in order of admission
        self._prefilling: dict[RequestId, Tracked] = {}
        self._prefill_blocks = 0  # blocks that requests in prefill took beyond their hits
        self._adapters: Counter[str] = Counter()  # running requests of each adapter
        self._decodes = Decodes(settings.block_size)
        self._backlog = 0
        self._limit = BatchLimit(settings.max_num_seqs)
        self._step: _Step | None = None
        self._stopped = 0  # requests that waited when the policy chose STOP, although the batch had room
        # The request whose blocks are being cached, and the position of the first of them.
        self.storing: tuple[SimRequest, int] | None = None

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        """Requests waiting or running."""
        return len(self._requests)

    def submit(self, request: SimRequest, now: float) -> None:
        """Queue a request. ConfigurationError if it can never run here, StateError if its id is taken."""
        self._check(request)
        tracked = Tracked(request)
        self._requests[request.request_id] = tracked
        self._set_backlog(tracked, tracked.target)
        self.queue.insert(request.candidate(self.settings.chunk_blocks))

    def abort(self, request_id: RequestId, now: float) -> None:
        """Remove a request in any state. Unknown ones are ignored, because an abort may come late."""
        tracked = self._requests.pop(request_id, None)
        if tracked is None:
            return
        self.counters.aborted += 1
        if tracked.state is State.WAITING:
            self.queue.remove(request_id)
        else:
            self._stop_running(tracked, now)
            self.queue.finish(request_id)
        self._set_backlog(tracked, 0)
        tracked.state = State.DONE

    def change_policy(self, settings: EngineSettings) -> None:
        """Change the batching policy, without its learned state, and keep the requests. No other setting may differ."""
        queue = make_queue(settings.queue, rng=self._rng, **settings.queue_options)
        for request_id, tracked in self._requests.items():
            queue.insert(tracked.request.candidate(settings.chunk_blocks))
            if request_id in self._running:
                queue.add(request_id)
        self.queue, self.settings = queue, settings

    def load(self) -> Load:
        """The load now."""
        waiting = len(self._requests) - len(self._running)
        return Load(len(self._running), waiting, self.pool.usage, self._backlog)

    @property
    def held_back(self) -> int:
        """Waiting requests that the policy holds back on purpose. One that came since waits for the next step."""
        return min(self._stopped, len(self._requests) - len(self._running))

    def step(self, now: float) -> StepReport | None:
        """Schedule the next step at `now`; None when there is no work. It first ends an unended step."""
        if self._step is not None:
            self.end_step(now)
        if not self._requests:
            return None
        step, self._stopped = _Step(), 0
        self._step = step
        budget = self._schedule_decodes(step, now)
        budget = self._schedule_prefills(step, budget, now)
        if not step.report.preempted:
            self._admit(step, budget, now)
        if self.host is not None:
            self.host.promote(self.pool, prefill_tokens=step.shape.prefill_tokens, reserve=len(self._running), now=now)
            step.shape.pcie_bytes = self.host.take_bytes()
        self._describe(step)
        return step.report

    def end_step(self, now: float) -> None:
        """End the current step at `now`: its tokens are put out, and its finished requests release their blocks."""
        step, self._step = self._step, None
        if step is None:
            return
        if self.settings.batch_limit == "Adaptive":
            report = step.report
            self._limit.observe(len(self._running), len(report.preempted), report.kv_usage, ended=len(report.finished))
        self._decodes.advance()
        for tracked in step.ending:
            if tracked.state is State.DECODING:
                self._finish(tracked, now)
        for tracked in step.prefilled:
            if tracked.state is State.PREFILLING:
                self._leave_prefill(tracked, now)
        report = step.report
        self.counters.count(report, len(step.prefilled))
        self.queue.observe(StepOutcome(report.seconds, report.decode_tokens, report.prefill_tokens))

    def reset_prefix_cache(self, now: float, *, running: bool = False, external: bool = False) -> bool:
        """Empty the cache, between two steps. False, without a change, while requests hold blocks.

        running: send the running requests back to the queue first. external: empty the host tier too."""
        if self._step is not None:
            raise StateError("a step has not ended: call end_step before the cache is reset")
        for tracked in reversed(list(self._running.values()) if running else []):
            self._preempt(tracked, now)
        if self.pool.in_use:
            return False
        if self.host is not None:
            self.host.cleared(external=external)
        self.pool.clear()
        return True

    # --- scheduling -------------------------------------------------------------------------------------------------

    def _schedule_decodes(self, step: _Step, now: float) -> int:
        """Schedules one token for each decoding request; returns the token budget left."""
        needing = self._decodes.needing_block()
        if needing:
            if self.pool.allocate(len(needing), now):
                for tracked in needing:
                    tracked.anonymous += 1
            else:
                self._allocate_one_by_one(step, list(needing), now)
        for tracked in self._decodes.filling_block():
            self._commit(tracked, self._decodes.computed(tracked) + 1, now)
        step.ending = self._decodes.ending()
        return self.settings.max_batched_tokens - len(self._decodes)

    def _allocate_one_by_one(self, step: _Step, needing: list[Tracked], now: float) -> None:
        for tracked in needing:
            if tracked.state is State.DECODING and self._make_room(step, tracked, 1, now):
                tracked.anonymous += 1

    def _make_room(self, step: _Step, tracked: Tracked, blocks: int, now: float) -> bool:
        """Allocate, preempting the youngest running requests as needed; False if `tracked` itself was preempted."""
        while not self.pool.allocate(blocks, now):
            victim = next(reversed(self._running.values()))
            self._preempt(victim, now)
            step.report.preempted.append(victim.request.request_id)
            if victim is tracked:
                return False
        return True

    def _schedule_prefills(self, step: _Step, budget: int, now: float) -> int:
        for tracked in list(self._prefilling.values()):
            if budget <= 0:
                break
            if tracked.state is State.PREFILLING:
                budget -= self._prefill(step, tracked, budget, now)
        return budget

    def _prefill(self, step: _Step, tracked: Tracked, budget: int, now: float) -> int:
        """Compute the next chunk of a prompt; returns its tokens, 0 if the request had to be preempted."""
        chunk = min(tracked.target - tracked.computed, budget)
        after = tracked.computed + chunk
        size = self.settings.block_size
        blocks = -(-after // size) - tracked.held - tracked.anonymous
        if not self._make_room(step, tracked, blocks, now):
            return 0
        self._prefill_blocks += blocks
        tracked.own += blocks
        tracked.anonymous += blocks
        self._commit(tracked, after, now)
        step.report.chunks.append((tracked.request.request_id, tracked.computed, chunk))
        step.shape.prefill_tokens += chunk
        step.shape.prefill_pairs += chunk * (tracked.computed + (chunk + 1) / 2)
        tracked.computed = after
        self._set_backlog(tracked, tracked.target - after)
        if after == tracked.target:
            step.prefilled.append(tracked)
        return chunk

    def _admit(self, step: _Step, budget: int, now: float) -> None:
        """Take waiting requests in, in the policy's order, while there is budget and room."""
        aside: list[RequestId] = []
        while budget > 0 and len(self._running) < self._limit.limit:
            request_id = self.queue.select(now)
            if request_id is None:
                self._stopped = len(self.queue)
                break
            tracked = self._requests[request_id]
            if not self._has_slot(tracked.request.adapter):
                self.queue.add(request_id)
                aside.append(request_id)
                continue
            hits = self._fits(tracked)
            if hits is None:
                break
            self._take(tracked, hits, now)
            self.queue.add(request_id)
            tracked.state = State.PREFILLING
            self._running[request_id] = self._prefilling[request_id] = tracked
            self._adapters[tracked.request.adapter] += 1
            step.report.admitted.append(request_id)
            budget -= self._prefill(step, tracked, budget, now)
        for request_id in reversed(aside):
            self.queue.requeue(request_id)

    def _has_slot(self, adapter: str) -> bool:
        """Whether the running requests leave a slot for the adapter."""
        running = self._adapters
        return not adapter or running[adapter] > 0 or len(self.running_adapters()) < self.settings.adapter_slots

    def running_adapters(self) -> list[str]:
        """The adapters with running requests."""
        return [name for name, count in self._adapters.items() if name and count]

    def waiting_adapters(self) -> list[str]:
        """The adapters with waiting requests."""
        waiting = (one.request.adapter for one in self._requests.values() if one.state is State.WAITING)
        return sorted({name for name in waiting if name})

    def _fits(self, tracked: Tracked) -> int | None:
        """Cached blocks of the prompt, if the rest fits beside the blocks in use; None if not. It changes no order of
        use, because a request that waits for room is asked in every step.

        The last token is always computed: its logits give the first output token.
        """
        size = self.settings.block_size
        hashes = tracked.hashes[: (tracked.target - 1) // size]
        hits = self.pool.match(hashes)
        new = -(-tracked.target // size) - hits
        return hits if new + self._unused(hashes, hits) <= self.pool.available else None

    def _unused(self, hashes: Sequence[int], hits: int) -> int:
        """Counts the first `hits` blocks that no running request holds. Pinning makes them unavailable."""
        unused, run = 0, self.pool.tree.run_at(hashes[hits - 1]) if hits else None
        while run is not None and not run.busy:
            unused += hits - run.start
            hits, run = run.start, run.parent
        return unused

    def _take(self, tracked: Tracked, hits: int, now: float) -> None:
        """Pin the cached blocks of the prompt, and load from host memory what it has of the rest."""
        self.pool.pin(tracked.hashes[:hits], now)
        if self.host is not None:
            self.host.found(tracked.hashes[:hits])
        tracked.held = hits
        loaded = 0 if self.host is None else self._load(tracked, now)
        tracked.computed = tracked.held * self.settings.block_size
        self._set_backlog(tracked, tracked.target - tracked.computed)
        if tracked.cached_tokens is None:
            tracked.cached_tokens = tracked.computed
            size = self.settings.block_size
            self.counters.prompt(tracked.target, hits * size, loaded * size, host=self.host is not None)

    def _load(self, tracked: Tracked, now: float) -> int:
        """Copy up what host memory holds after the prompt's hits; returns the blocks. `_fits` has checked the room."""
        assert self.host is not None
        hashes = tracked.hashes[: (tracked.target - 1) // self.settings.block_size]
        blocks = self.host.match(hashes, tracked.held)
        if not blocks or not self.pool.allocate(blocks, now):
            return 0
        self.host.load(hashes[tracked.held : tracked.held + blocks])
        tracked.anonymous += blocks
        self._commit(tracked, (tracked.held + blocks) * self.settings.block_size, now)
        return blocks

    def _describe(self, step: _Step) -> None:
        """Fill in the report: the state when the step has ended."""
        shape, report = step.shape, step.report
        if report.preempted:
            step.ending = [tracked for tracked in step.ending if tracked.state is State.DECODING]
        shape.decodes = len(self._decodes)
        shape.context = self._decodes.context + shape.decodes
        shape.distinct = (self.pool.in_use - self._prefill_blocks) * self.settings.block_size
        shape.shared = self._decodes.shared_tokens
        shape.ordered = self.settings.order_batch
        report.seconds = self.settings.device.seconds(shape)
        report.kv_usage = self.pool.usage
        report.decode_tokens = shape.decodes
        report.prefill_tokens = shape.prefill_tokens
        report.finished = [self._outcome(tracked) for tracked in step.ending]
        for tracked in step.prefilled:
            if tracked.generated == 0:
                report.first_tokens.append(tracked.request.request_id)
            if tracked.generated + 1 == tracked.request.output_tokens:
                report.finished.append(self._outcome(tracked))
        if self.settings.report_tokens:
            report.tokens = [tracked.request.request_id for tracked in (*self._decodes, *step.prefilled)]

    @staticmethod
    def _outcome(tracked: Tracked) -> tuple[RequestId, int]:
        return tracked.request.request_id, tracked.cached_tokens or 0

    # --- what happens to a request ----------------------------------------------------------------------------------

    def _commit(self, tracked: Tracked, computed: int, now: float) -> None:
        """Cache the blocks that are full once `computed` tokens are, as far as their hashes are known."""
        full = min(computed // self.settings.block_size, len(tracked.hashes))
        if full > tracked.held:
            parent = tracked.hashes[tracked.held - 1] if tracked.held else None
            self.storing = (tracked.request, tracked.held)
            self.pool.commit(tracked.hashes[tracked.held : full], parent, now, tracked.request.owner)
            self.storing = None
            tracked.anonymous -= full - tracked.held
            tracked.held = full

    def _leave_prefill(self, tracked: Tracked, now: float) -> None:
        """The step with the prompt's last chunk has ended: it has one more token, and decodes if it needs more."""
        tracked.generated += 1
        if tracked.generated == tracked.request.output_tokens:
            self._finish(tracked, now)
            return
        self._drop_prefill(tracked)
        self._decodes.enter(tracked)

    def _finish(self, tracked: Tracked, now: float) -> None:
        self._stop_running(tracked, now)
        self.queue.finish(tracked.request.request_id)
        del self._requests[tracked.request.request_id]
        tracked.state = State.DONE
        self.counters.finished += 1

    def _preempt(self, tracked: Tracked, now: float) -> None:
        self._stop_running(tracked, now)
        request_id = tracked.request.request_id
        self.queue.requeue(request_id)
        tracked.state = State.WAITING
        tracked.target = tracked.request.prompt_tokens + tracked.generated
        tracked.computed = 0
        self._set_backlog(tracked, tracked.target)
        self.counters.preempted += 1

    def _stop_running(self, tracked: Tracked, now: float) -> None:
        """Remove a running request from the batch and release its blocks."""
        if tracked.state is State.DECODING:
            self._decodes.leave(tracked)
        else:
            self._drop_prefill(tracked)
        del self._running[tracked.request.request_id]
        self._adapters[tracked.request.adapter] -= 1
        self.pool.release(tracked.hashes[: tracked.held], tracked.anonymous, now)
        tracked.held = tracked.anonymous = 0

    def _drop_prefill(self, tracked: Tracked) -> None:
        del self._prefilling[tracked.request.request_id]
        self._prefill_blocks -= tracked.own
        tracked.own = 0

    def _set_backlog(self, tracked: Tracked, tokens: int) -> None:
        self._backlog += tokens - tracked.backlog
        tracked.backlog = tokens

    def _check(self, request: SimRequest) -> None:
        if request.request_id in self._requests:
            raise StateError(f"request {request.request_id!r} is in the engine already")
        request.check(self.settings.block_size, self.settings.cache_blocks)


def _host_link(settings: EngineSettings, rng: Random, sink: EventSink | None) -> HostLink | None:
    if not settings.host_blocks:
        return None
    return HostLink(
        settings.host_blocks,
        block_size=settings.block_size,
        block_bytes=settings.block_size * settings.device.kv_bytes_per_token,
        device_blocks=settings.cache_blocks,
        rng=rng,
        sink=sink,
        **settings.tier_options,
    )
