"""Host memory with a disk below it: the article's tier decision over vLLM's own manager of tiers (0137).

vLLM's manager would write to the tier below whatever comes down, at once. Here the decision says what goes where:
host memory while it has room or the chunk is hotter than who goes for it, else the disk. What belongs on the disk gets
there by host memory, the one memory that the device and the disk share: when that is nearly full, its coldest chunks
are written down ahead of their end, so that a newcomer finds places whose chunks lie below already.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from itertools import takewhile
from typing import Any

from plumage.tiering import Pressure, Tier, decide_tier
from plumage.tiering.decision import NodeFacts
from plumage_engine.vllm.compat.kv_offload import OffloadKey, PrepareStoreOutput, ReqContext
from plumage_engine.vllm.compat.kv_tiering import (
    CPUPrimaryTierOffloadingManager,
    LookupResult,
    OffloadingEvent,
    ScheduleEndContext,
    SharedOffloadRegion,
    TieringOffloadingManager,
    complaints,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.offload.disk_tier.disk_tier import DiskTier
from plumage_engine.vllm.offload.host_tier.residents import chunk_key
from plumage_engine.vllm.offload.host_tier.store_manager import SelectiveManager

__all__ = ["MemoryOverDisk", "TieredManager"]

_AHEAD = 256
"""Chunks at most that are written down before their places are wanted; of a small memory a quarter."""


class MemoryOverDisk(SelectiveManager, CPUPrimaryTierOffloadingManager):
    """Host memory that knows of a disk below. region: that the workers map too."""

    disk: DiskTier

    def __init__(
        self, chunks: int, tokens: int, chunk_bytes: int, region: SharedOffloadRegion, *, events: bool
    ) -> None:
        super().__init__(chunks, tokens, chunk_bytes, events=events, mmap_region=region)
        self.prepare_write = self._from_below
        self.region = region
        self.promised: Counter[OffloadKey] = Counter()
        self._ahead = max(1, min(_AHEAD, chunks // 4))
        self._stirred = True
        self._cold: deque[OffloadKey] = deque()

    def hotness(self, key: OffloadKey) -> float:
        """How much the chunk is worth keeping, now."""
        return self.heats.admission(chunk_key(key))

    def to_write(self) -> list[OffloadKey]:
        """The chunks that are to be written to the disk now, the coldest first: none while memory has room."""
        if not self._stirred or not self.guard.on or self._get_num_free_chunks() > self._ahead:
            return []
        coldest = self.residents.coldest(self._ahead)
        found = [key for key in coldest if key not in self.disk and self._tier(key) is Tier.DISK]
        self._stirred = bool(found)
        return found

    def rest(self) -> None:
        """The disk took none of them: to ask again before others are the coldest would be work for nothing."""
        self._stirred = False

    def complete_store(self, *given: Any, **named: Any) -> None:
        """Chunks came down, or up from the disk: others may be the coldest now."""
        self._stirred = True
        super().complete_store(*given, **named)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        self._note_lost(output)
        return output

    def take_events(self) -> Iterator[OffloadingEvent]:
        """A chunk that comes up again needs its description until it leaves here too."""
        for event in super().take_events():
            event.removal_expected = not event.removed
            yield event

    # -- the decision ------------------------------------------------------------------------------------------------

    def _tier(self, key: OffloadKey) -> Tier:
        """Where a chunk belongs for which memory has no room. It is asked when the device or memory is about to lose
        the chunk, so it is stale then, and whatever hangs below it has gone before."""
        frequent = self.settings.admission == "All" or (
            self.heats.frequency(chunk_key(key)) >= self.settings.min_frequency
        )
        facts = NodeFacts(recent=False, frequent=frequent, leaf=True)
        return decide_tier(facts, Pressure.HIGH, host_full=True, disk=self.disk.guard.on)

    def _taken(self, new: list[OffloadKey], offered: set[OffloadKey]) -> list[OffloadKey]:
        """Beside those that are worth a place in memory, those that belong on the disk, on their way there: each takes
        the place of a cold one that lies there already."""
        taken = super()._taken(new, offered)
        below = takewhile(lambda key: self._tier(key) is Tier.DISK, new[len(taken) :])
        absent = [key for key in below if key not in self.disk]
        return taken + absent[: self.residents.give_way(len(absent), offered, self.disk.__contains__) if absent else 0]

    def _from_below(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Places for chunks of the disk that a request waits for. None where everything here is in use, or promised to
        a request that waits: two of them must not take each other's chunks away for ever."""
        try:
            going = self._who_goes(len(keys) - self._get_num_free_chunks()) if self.guard.on else None
        except Exception as error:
            self.guard.failed(error)
            going = None
        if going is None:
            return None
        self.residents.doom(going)
        output = super(SelectiveManager, self).prepare_store(keys, req_context)
        self.residents.doom(())
        self._note_lost(output)
        if output is not None and output.keys_to_store:
            self._placed(output.keys_to_store, req_context)
        return output

    def _who_goes(self, number: int) -> list[OffloadKey] | None:
        """So many of the coldest, those first that lie on the disk. None where there are not so many."""
        going: list[OffloadKey] = []
        while len(going) < number:
            if not self._cold:
                fresh = self.residents.coldest(_AHEAD, {*self.promised, *going})
                self._cold = deque(sorted(fresh, key=lambda key: key not in self.disk))
            if not self._cold:
                return None
            key = self._cold.popleft()
            if self.residents.may_go(key) and key not in self.promised:
                going.append(key)
        return going

    def step_ended(self) -> None:
        """Who was cold in this step need not be in the next."""
        self._cold.clear()

    def _note_lost(self, output: PrepareStoreOutput | None) -> None:
        if output is None or not output.evicted_keys or not self.disk.guard.on:
            return
        try:
            lost = sum(key not in self.disk and self._tier(key) is Tier.DISK for key in output.evicted_keys)
            self.counters.add("disk_misses", lost)
            self.disk.left(output.evicted_keys)
        except Exception as error:
            self.disk.guard.failed(error)


class TieredManager(TieringOffloadingManager):
    """memory: vLLM's primary tier. disk: below it."""

    def __init__(self, memory: MemoryOverDisk, disk: DiskTier) -> None:
        super().__init__(primary_tier=memory, secondary_tiers=[disk])
        memory.disk = disk
        self.memory = memory
        self.disk = disk
        self._promises: dict[str, set[OffloadKey]] = {}
        self._written = 0

    def attach(self, counters: Counters, parallel: Any) -> None:
        """Begin to use the disk. parallel: vLLM's ParallelConfig."""
        self.disk.switch_on(counters, complaints(self, self.memory.region, parallel))

    # -- a request looks for its chunks ------------------------------------------------------------------------------

    def lookup(self, key: OffloadKey, req_context: ReqContext, **named: Any) -> LookupResult:
        """What is here, or on its way up, is kept for the request until it loads it."""
        result = super().lookup(key, req_context, **named)
        if result is not LookupResult.MISS and self.disk.guard.on:
            try:
                self._promise(key, req_context.req_id)
            except Exception as error:
                self.disk.guard.failed(error)
        return result

    def _promise(self, key: OffloadKey, request: str) -> None:
        mine = self._promises.setdefault(request, set())
        if key not in mine:
            mine.add(key)
            self.memory.promised[key] += 1

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Any:
        spec = super().prepare_load(keys, req_context)
        self._release(req_context.req_id)
        return spec

    def on_request_finished(self, req_context: ReqContext, **named: Any) -> None:
        self._release(req_context.req_id)
        super().on_request_finished(req_context, **named)

    def _release(self, request: str) -> None:
        """A failure leaves promises behind, which nobody heeds without the disk."""
        try:
            for key in self._promises.pop(request, ()):
                self._unpromise(key)
        except Exception as error:
            self.disk.guard.failed(error)

    def _unpromise(self, key: OffloadKey) -> None:
        promised = self.memory.promised
        promised[key] -= 1
        if not promised[key]:
            del promised[key]

    # -- what goes down ----------------------------------------------------------------------------------------------

    def _should_store_to_tier(self, *given: Any) -> bool:
        """vLLM asks of all that comes down: `on_schedule_end` writes what is to be written."""
        return False

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        super().on_schedule_end(context)
        if self.disk.guard.on:
            try:
                self.memory.step_ended()
                self._write_down()
            except Exception as error:
                self.disk.guard.failed(error)

    def _write_down(self) -> None:
        wanted = self.memory.to_write() if self.disk.may_begin else []
        if not wanted:
            return
        keys = self.disk.make_room(wanted)
        if not keys:
            self.memory.rest()
            return
        self._written += 1
        context = ReqContext(f"plumage-disk-{self._written}")
        self.disk.submit_store(self.create_store_job(keys, context, 0))

    def has_pending_work(self) -> bool:
        """Nobody waits for what is written: an idle engine need not go on stepping for it."""
        try:
            return any(job.transfer_job.is_promotion for job in self._jobs.values())
        except Exception as error:
            self.disk.guard.failed(error)
            return bool(super().has_pending_work())

    def reset_cache(self) -> None:
        """What was computed before is not true any more, on the disk neither."""
        super().reset_cache()
        self._promises.clear()
        self.memory.promised.clear()
        try:
            self.disk.forget()
        except Exception as error:
            self.disk.guard.failed(error)
