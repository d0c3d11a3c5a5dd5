"""Promotion of hot prefixes while requests decode (HotPrefix §3.4), as jobs of vLLM's offloading connector.

What comes up is what the next waiting requests lack (`lookahead`), at any step, and what is hot, at steps that decode.
A promotion is a load that no running request waits for: its blocks are taken from the pool, and given back, findable,
when all workers have told that it ended. Whatever happens in between, a reset above all, its blocks are given back at
once, and the workers are told to end the copy before those blocks are written again.
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
from plumage_engine.vllm.offload.host_tier.store_manager import SelectiveManager
from plumage_engine.vllm.offload.promotion.candidates import Candidates, Piece
from plumage_engine.vllm.offload.promotion.device_blocks import Device
from plumage_engine.vllm.offload.promotion.lookahead import Lookahead

__all__ = ["Promoter"]

Key = bytes
_LEAVES = 256
"""Blocks of the device, idle longest, among which a plan finds the coldest: it bounds what a plan costs."""
_SETTLED_AT_ONCE = 64
"""Promoted blocks whose fate is looked up by one plan, beside two for each that it promotes: so they never pile up."""


@dataclass(slots=True)
class _Job:
    """A copy under way. ahead: for a request that waits. blocks: empty once it was let go. left: workers that have not
    told of its end."""

    piece: Piece
    ahead: bool
    blocks: list[Any]
    context: ReqContext
    left: int


class Promoter:
    """connector: vLLM's connector's scheduler half. reserve: free blocks that are left to running requests. waiting:
    the next requests to be admitted, as well as is known."""

    def __init__(
        self,
        connector: Any,
        manager: SelectiveManager,
        device: Device,
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
        """Promoted blocks that no request has found yet, and what their fate is evidence of."""

    @property
    def pending(self) -> bool:
        """Copies are under way: the engine must go on stepping until they have ended."""
        return bool(self._jobs)

    # -- at each step ------------------------------------------------------------------------------------------------

    def step(self, output: Any) -> None:
        """A step was formed and its jobs are about to be sent."""
        try:
            self._send_flush()
            if self._guard.on and self._manager.guard.on:
                self._plan(output)
        except Exception as error:
            self._guard.failed(error)

    def _send_flush(self) -> None:
        """Tell the workers of the copies that must end; what could not be told is told with the next step."""
        if self._flush:
            self._connector._current_batch_jobs_to_flush |= self._flush
            self._flush = set()

    def _plan(self, output: Any) -> None:
        """Start the copies of this step, and learn the fate of earlier ones."""
        spent = self._bring_ahead(self._chunks(0)) if self.worth_ahead.turn() else 0
        if self._turn.step(prefill_tokens=_prefill(output)):
            self._settle(_SETTLED_AT_ONCE)
            if self.worth.turn():
                spent += self._promote(self._chunks(spent))
        self._settle(2 * spent)

    def ended(self, output: Any) -> None:
        """Workers told what has ended: take out what is ours before vLLM looks for its requests.

        Where that much fails the blocks are given back all the same, but vLLM ends at names it does not know."""
        if not self._names and not self._jobs:
            return
        try:
            done = self._taken_out(output)
        except Exception as error:
            self.failed(error)
            return
        for job in done:
            self._finish(job)

    def _taken_out(self, output: Any) -> list[_Job]:
        """The copies that all workers have told of."""
        received = output.finished_recving
        if received and self._names:
            ours = received & self._names
            self._names -= ours
            output.finished_recving = received - ours
        told = output.kv_connector_worker_meta
        if not isinstance(told, OffloadingWorkerMetadata):
            return []
        ours_told = [number for number in told.completed_jobs if number in self._jobs]
        for number in ours_told:
            self._jobs[number].left -= told.completed_jobs.pop(number)
        return [self._jobs.pop(number) for number in ours_told if not self._jobs[number].left]

    def found(self, request: Any, tokens: int) -> None:
        """A request found the first `tokens` of its prompt in the device."""
        if not self._unused:
            return
        try:
            keys = self._connector._req_status[request.request_id].group_states[0].offload_keys
            used = [key for key in keys[: tokens // self._manager.heats.tokens] if key in self._unused]
            for key in used:
                self._unused.pop(key).settle(used=1)
            self._counters.add("promotions_used", len(used))
        except Exception as error:
            self._guard.failed(error)

    # -- resets ------------------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """The device's cache is about to be reset: give the blocks of copies under way back, and have them end."""
        for number, job in self._jobs.items():
            if job.blocks:
                self._flush.add(number)
                try:
                    self._give_back(job)
                    self._counters.add("promotions_abandoned", len(job.piece.keys))
                except Exception as error:
                    self._guard.failed(error)
        self._unused.clear()

    def forget(self) -> None:
        """Host memory is about to be reset: vLLM takes what workers tell of earlier jobs for stale. It also holds that
        nothing is to be flushed yet, which is not so when this is the second reset since the last step."""
        self.let_go()
        self._jobs.clear()
        try:
            self._take_flush()
        except Exception as error:
            self._guard.failed(error)

    def _take_flush(self) -> None:
        self._flush |= self._connector._current_batch_jobs_to_flush
        self._connector._current_batch_jobs_to_flush = set()

    def failed(self, error: Exception) -> None:
        """No more promotions; the blocks of those under way are given back."""
        self._guard.failed(error)
        self.let_go()

    # -- a plan and its jobs -----------------------------------------------------------------------------------------

    def _chunks(self, spent: int) -> int:
        """That may go up in this step, after `spent` have."""
        allowed: int = self._manager.settings.promotion_tokens // self._manager.heats.tokens - spent
        return min(allowed, self._link_room(), self._device.free - self._reserve)

    def _link_room(self) -> int:
        """Chunks that may begin their way up beside those that are on it; where none is, one, however large."""
        moving = sum(len(job.piece.keys) for job in self._jobs.values())
        return max(1, int(self._manager.settings.promotion_bytes // self._manager.chunk_bytes)) - moving

    def _bring_ahead(self, chunks: int) -> int:
        """For those that wait; how many. What goes for it is what an allocation would take next, but for what they wait
        for."""
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
        """What is hot, for what is coldest of that which has been idle longest and nobody waits for; how many."""
        tokens, busy = self._manager.heats.tokens, self._connector._chunks_being_loaded
        roots = {node.key: (node, piece) for node, piece in self._candidates.roots(chunks, busy)}
        if not roots:
            return 0
        wanted = sum(len(piece.keys) for _, piece in roots.values())
        empty = self._device.empty(wanted + self._reserve)
        leaves: dict[int, tuple[TierNode, Any]] = {}
        for block in self._device.leaves(max(wanted, _LEAVES), self._lookahead.wanted()):
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
        """Order one copy, into blocks from the front of `spare`."""
        connector, blocks = self._connector, [spare.pop(0) for _ in piece.keys]
        number = connector._generate_job_id()
        context = ReqContext(req_id=f"plumage-promotion-{number}")
        target = GPULoadStoreSpec([block.block_id for block in blocks], [len(blocks)], [piece.start])
        job = _Job(piece, ahead, [], context, connector.config.num_workers)
        source = self._manager.lend(piece.keys, context)
        try:
            self._device.take(blocks)
            job.blocks = blocks
            self._loading(job, True)
            # What is still to be copied down out of these blocks goes first.
            connector._current_batch_allocated_block_ids.update(block.block_id for block in blocks)
            connector._current_batch_load_jobs[number] = TransferJob(context.req_id, source, target)
        except Exception:
            self._manager.complete_load(piece.keys, context)
            self._give_back(job)
            raise
        self._jobs[number] = job
        self._names.add(context.req_id)

    def _finish(self, job: _Job) -> None:
        """The copy is there. Whatever fails, its blocks are given back; where it is host memory's own word that the
        copy has ended, its chunks keep their places there until the next reset."""
        try:
            self._manager.complete_load(job.piece.keys, job.context)
            if job.blocks:
                self._place(job)
        except Exception as error:
            self._guard.failed(error)
        self._give_back(job)

    def _place(self, job: _Job) -> None:
        """What was copied can be found from here on."""
        placed = self._device.place(job.piece.keys, job.blocks, job.piece.above, job.piece.start)
        self._unused.update(dict.fromkeys(placed, self.worth_ahead if job.ahead else self.worth))
        self._counters.add("promotions", len(placed))
        described = self._connector._events_tracker._pending_event_metadata
        for key in placed:
            if key in described:
                self._device.tell(described[key])

    def _give_back(self, job: _Job) -> None:
        """Nobody waits for it, and its blocks are free, if it still has them."""
        if not job.blocks:
            return
        blocks, job.blocks = job.blocks, []
        try:
            self._loading(job, False)
        except Exception as error:
            self._guard.failed(error)
        self._device.give_back(blocks)

    def _loading(self, job: _Job, begins: bool) -> None:
        """A request that needs what is being copied waits for it, as for another request's load."""
        loading = self._connector._chunks_being_loaded
        (loading.update if begins else loading.difference_update)(job.piece.keys)

    def _settle(self, number: int) -> None:
        """Which of the `number` oldest promoted blocks have been evicted, unused?"""
        rests = self.worth.rests + self.worth_ahead.rests
        for key in list(islice(self._unused, number)):
            if self._device.holds(key):
                self._unused.move_to_end(key)
            else:
                self._unused.pop(key).settle(wasted=1)
                self._counters.add("promotions_wasted", 1)
        self._counters.add("promotion_rests", self.worth.rests + self.worth_ahead.rests - rests)


def _prefill(output: Any) -> int:
    """Prompt tokens of a step: what is scheduled for requests that do more than go on by their next token."""
    drafts = output.scheduled_spec_decode_tokens or {}
    return sum(n for name, n in output.num_scheduled_tokens.items() if n > 1 + len(drafts.get(name, ())))
