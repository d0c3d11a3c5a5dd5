"""Promotes prefixes while requests decode (HotPrefix §3.4), as jobs of vLLM's offloading connector.

At any step it copies what the next waiting requests lack (`lookahead`); at steps that only decode, the hottest.
A promotion is a load for which no running request waits. Its blocks are taken from the pool, and freed, cached, when
all workers have reported its end. After a reset its blocks are freed at once, and workers must end the copy before
those blocks are written again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from plumage.tiering import PromotionBudget, PromotionTurn, PromotionWorth, TierNode, plan_promotion
from plumage_engine.vllm.compat.kv_offload import (
    GPULoadStoreSpec,
    OffloadingWorkerMetadata,
    ReqContext,
    TransferJob,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager
from plumage_engine.vllm.offload.promotion.candidates import Candidates, Piece
from plumage_engine.vllm.offload.promotion.device_blocks import DeviceBlocks
from plumage_engine.vllm.offload.promotion.lookahead import Lookahead

__all__ = ["Promoter"]

Key = bytes
_MAX_LEAVES = 256
"""The blocks idle longest, among which a plan finds the coldest: it bounds the cost of a plan."""
_CHECKED_AT_ONCE = 64
"""Promoted blocks that one plan checks for use, beside two for each that it promotes: so they never pile up."""


@dataclass(slots=True)
class _Job:
    """A copy under way.

    ahead: for a waiting request.
    blocks: empty once they were freed.
    left: workers that have not reported its end.
    """

    piece: Piece
    ahead: bool
    blocks: list[Any]
    context: ReqContext
    left: int


class Promoter:
    """connector: the scheduler half of vLLM's connector.
    reserve: free blocks that are left to running requests.
    waiting: the requests to be admitted next, as well as is known.
    """

    def __init__(
        self,
        connector: Any,
        manager: HostTierManager,
        device: DeviceBlocks,
        guard: Guard,
        counters: Counters,
        *,
        reserve: int,
        waiting: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self._connector = connector
        self._manager = manager
        self._device = device
        self._guard = guard
        self._counters = counters
        self._reserve = reserve
        self._candidates = Candidates(manager.residents, device)
        self._lookahead = Lookahead(manager.residents, device, waiting, device.group)
        self._turn = PromotionTurn()
        self.worth = PromotionWorth()
        self.worth_ahead = PromotionWorth()
        self._jobs: dict[int, _Job] = {}
        self._names: set[str] = set()
        self._flush: set[int] = set()
        self._unused: OrderedDict[Key, PromotionWorth] = OrderedDict()
        """Promoted blocks that no request has found yet, each with the statistic that it counts for."""

    @property
    def pending(self) -> bool:
        """Copies are under way: the engine must step until they have ended."""
        return bool(self._jobs)

    # -- at each step --------------------------------------------------------------------------------------------------

    def step(self, output: Any) -> None:
        """A step was formed and its jobs are about to be sent."""
        try:
            self._send_flush()
            if self._guard.on and self._manager.guard.on:
                self._plan(output)
        except Exception as error:
            self._guard.failed(error)

    def _send_flush(self) -> None:
        """Send the workers the copies that must end; a failed send is repeated with the next step."""
        if self._flush:
            self._connector._current_batch_jobs_to_flush |= self._flush
            self._flush = set()

    def _plan(self, output: Any) -> None:
        """Start the copies of this step, and check whether earlier ones were used."""
        spent = self._promote_ahead(self._chunks(0)) if self.worth_ahead.turn() else 0
        if self._turn.step(prefill_tokens=_prefill(output)):
            self._check_unused(_CHECKED_AT_ONCE)
            if self.worth.turn():
                spent += self._promote(self._chunks(spent))
        self._check_unused(2 * spent)

    def ended(self, output: Any) -> None:
        """Workers reported ended copies: remove ours before vLLM looks up their requests.

        If that fails the blocks are freed all the same, but vLLM ends at unknown names.
        """
        if not self._names and not self._jobs:
            return
        try:
            done = self._take_ended(output)
        except Exception as error:
            self.failed(error)
            return
        for job in done:
            self._finish(job)

    def _take_ended(self, output: Any) -> list[_Job]:
        """Remove and return the copies that all workers have reported."""
        received = output.finished_recving
        if received and self._names:
            ours = received & self._names
            self._names -= ours
            output.finished_recving = received - ours
        reported = output.kv_connector_worker_meta
        if not isinstance(reported, OffloadingWorkerMetadata):
            return []
        ours_reported = [number for number in reported.completed_jobs if number in self._jobs]
        for number in ours_reported:
            self._jobs[number].left -= reported.completed_jobs.pop(number)
        return [self._jobs.pop(number) for number in ours_reported if not self._jobs[number].left]

    def request_found(self, request: Any, tokens: int) -> None:
        """A request found the first `tokens` of its prompt on the device."""
        if not self._unused:
            return
        try:
            keys = self._connector._req_status[request.request_id].group_states[0].offload_keys
            used = [key for key in keys[: tokens // self._manager.hotness.tokens] if key in self._unused]
            for key in used:
                self._unused.pop(key).count_outcomes(used=1)
            self._manager.residents.came_back(used)
            self._counters.add("promotions_used", len(used))
        except Exception as error:
            self._guard.failed(error)

    # -- resets --------------------------------------------------------------------------------------------------------

    def cancel_copies(self) -> None:
        """Ends the copies under way and frees their blocks, before the device's cache is reset."""
        for number, job in self._jobs.items():
            if job.blocks:
                self._flush.add(number)
                try:
                    self._free_blocks(job)
                    self._counters.add("promotions_abandoned", len(job.piece.keys))
                except Exception as error:
                    self._guard.failed(error)
        self._unused.clear()

    def reset(self) -> None:
        """Host memory is about to be reset: vLLM ignores later reports of earlier jobs.

        vLLM also assumes that no flush is pending, which is wrong for a second reset since the last step.
        """
        self.cancel_copies()
        self._jobs.clear()
        try:
            self._take_flush()
        except Exception as error:
            self._guard.failed(error)

    def _take_flush(self) -> None:
        self._flush |= self._connector._current_batch_jobs_to_flush
        self._connector._current_batch_jobs_to_flush = set()

    def failed(self, error: Exception) -> None:
        """Ends all promotions, and frees the blocks of those under way."""
        self._guard.failed(error)
        self.cancel_copies()

    # -- a plan and its jobs -------------------------------------------------------------------------------------------

    def _chunks(self, spent: int) -> int:
        """Chunks that may be promoted in this step, after `spent` were."""
        allowed: int = self._manager.settings.promotion_tokens // self._manager.hotness.tokens - spent
        return min(allowed, self._link_room(), self._device.free - self._reserve)

    def _link_room(self) -> int:
        """Chunks whose copy may begin beside those under way; one, of any size, where there are none."""
        moving = sum(len(job.piece.keys) for job in self._jobs.values())
        return max(1, int(self._manager.settings.promotion_bytes // self._manager.chunk_bytes)) - moving

    def _promote_ahead(self, chunks: int) -> int:
        """Promote for waiting requests; returns the number of chunks.

        It evicts what an allocation would take next, except blocks that waiting requests need.
        """
        pieces = self._lookahead.pieces(chunks, self._connector._chunks_being_loaded)
        if not pieces:
            return 0
        needed, wanted = sum(len(piece.keys) for piece in pieces), self._lookahead.wanted()
        spare = self._device.empty(needed + self._reserve)[self._reserve :]
        if len(spare) < needed:
            spare += self._device.leaves(needed, wanted)
        room = len(spare)
        for piece in pieces:
            if len(piece.keys) > len(spare):
                break
            self._start(piece, spare, ahead=True)
        self._counters.add("promotions_ahead", room - len(spare))
        return room - len(spare)

    def _promote(self, chunks: int) -> int:
        """Promote hot chunks; returns their number.

        It evicts the coldest of the blocks that were idle longest and that no waiting request needs.
        """
        tokens, busy = self._manager.hotness.tokens, self._connector._chunks_being_loaded
        roots = {node.key: (node, piece) for node, piece in self._candidates.roots(chunks, busy)}
        if not roots:
            return 0
        wanted = sum(len(piece.keys) for _, piece in roots.values())
        empty = self._device.empty(wanted + self._reserve)
        leaves: dict[int, tuple[TierNode, Any]] = {}
        for block in self._device.leaves(max(wanted, _MAX_LEAVES), self._lookahead.wanted()):
            leaf = self._candidates.leaf(block.block_hash)
            leaves[leaf.key] = leaf, block
        budget = PromotionBudget(chunks * tokens, len(empty) * tokens, self._reserve * tokens)
        plan = plan_promotion([node for node, _ in roots.values()], [leaf for leaf, _ in leaves.values()], budget)
        spare = empty[: max(0, len(empty) - self._reserve)]
        for promotion in plan:
            spare += [leaves[victim.key][1] for victim in promotion.victims]
            self._start(roots[promotion.node.key][1], spare)
        return sum(len(roots[promotion.node.key][1].keys) for promotion in plan)

    def _start(self, piece: Piece, spare: list[Any], *, ahead: bool = False) -> None:
        """Start one copy, into blocks from the front of `spare`."""
        connector, blocks = self._connector, [spare.pop(0) for _ in piece.keys]
        number = connector._generate_job_id()
        context = ReqContext(req_id=f"plumage-promotion-{number}")
        target = GPULoadStoreSpec([block.block_id for block in blocks], [len(blocks)], [piece.start])
        job = _Job(piece, ahead, [], context, connector.config.num_workers)
        source = self._manager.prepare_promotion(piece.keys, context)
        try:
            self._device.take(blocks)
            job.blocks = blocks
            self._loading(job, True)
            # Pending stores out of these blocks run first.
            connector._current_batch_allocated_block_ids.update(block.block_id for block in blocks)
            connector._current_batch_load_jobs[number] = TransferJob(context.req_id, source, target)
        except Exception:
            self._manager.complete_load(piece.keys, context)
            self._free_blocks(job)
            raise
        self._jobs[number] = job
        self._names.add(context.req_id)

    def _finish(self, job: _Job) -> None:
        """The copy has ended. Its blocks are freed even if this fails.

        If it is host memory that fails to end the load, the chunks keep their places there until the next reset.
        """
        try:
            self._manager.complete_load(job.piece.keys, job.context)
            if job.blocks:
                self._place(job)
        except Exception as error:
            self._guard.failed(error)
        self._free_blocks(job)

    def _place(self, job: _Job) -> None:
        """Places the copied chunks: they can be found from here on."""
        placed = self._device.place(job.piece.keys, job.blocks, job.piece.above, job.piece.start)
        self._unused.update(dict.fromkeys(placed, self.worth_ahead if job.ahead else self.worth))
        self._counters.add("promotions", len(placed))
        described = self._connector._events_tracker._pending_event_metadata
        for key in placed:
            if key in described:
                self._device.publish(described[key])

    def _free_blocks(self, job: _Job) -> None:
        """Frees its blocks, if it still has them: no request waits for it any more."""
        if not job.blocks:
            return
        blocks, job.blocks = job.blocks, []
        try:
            self._loading(job, False)
        except Exception as error:
            self._guard.failed(error)
        self._device.free_taken(blocks)

    def _loading(self, job: _Job, begins: bool) -> None:
        """A request that needs these chunks waits for the copy, as for another request's load."""
        loading = self._connector._chunks_being_loaded
        (loading.update if begins else loading.difference_update)(job.piece.keys)

    def _check_unused(self, number: int) -> None:
        """Count which of the `number` oldest promoted blocks were evicted unused."""
        rests = self.worth.rests + self.worth_ahead.rests
        for key in list(islice(self._unused, number)):
            if self._device.holds(key):
                self._unused.move_to_end(key)
            else:
                self._unused.pop(key).count_outcomes(wasted=1)
                self._counters.add("promotions_wasted", 1)
        self._counters.add("promotion_rests", self.worth.rests + self.worth_ahead.rests - rests)


def _prefill(output: Any) -> int:
    """Prompt tokens of a step: those of requests with more than their next token and its drafts."""
    drafts = output.scheduled_spec_decode_tokens or {}
    return sum(n for name, n in output.num_scheduled_tokens.items() if n > 1 + len(drafts.get(name, ())))
