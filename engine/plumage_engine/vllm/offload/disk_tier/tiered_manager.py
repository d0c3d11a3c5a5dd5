"""Host memory with a disk below it: the article's tier decision in vLLM's own manager of tiers (decision 0137).

vLLM's manager would write every stored chunk to the tier below at once. Here the decision chooses the tier. It is host
memory while that has room or the chunk is hotter than the one evicted for it, else the disk. A chunk reaches the disk
through host memory, the only memory that device and disk share. When host memory is nearly full, its coldest chunks are
written before they are evicted. So a new chunk can replace one that is on the disk already.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from itertools import takewhile
from typing import Any

from plumage.tiering import Pressure, Tier, decide_tier
from plumage.tiering.decision import NodeFacts
from plumage_engine.vllm.compat.checks import missing_live
from plumage_engine.vllm.compat.kv_offload import OffloadKey, PrepareStoreOutput, ReqContext
from plumage_engine.vllm.compat.kv_tiering import (
    LIVE,
    CPUPrimaryTierOffloadingManager,
    LookupResult,
    OffloadingEvent,
    ScheduleEndContext,
    SharedOffloadRegion,
    TieringOffloadingManager,
    problems,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.offload.disk_tier.disk_tier import DiskTier
from plumage_engine.vllm.offload.host_tier.residents import chunk_key
from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager

__all__ = ["MemoryOverDisk", "TieredManager"]

_MAX_AHEAD = 1024
"""Chunks written before their places are needed; of a small memory at most a quarter."""
_LEAST_WRITES = 64


class MemoryOverDisk(HostTierManager, CPUPrimaryTierOffloadingManager):
    """Host memory with a disk below.

    region: the memory that the workers map too.
    writes: chunks that are written at once, at most. A step that computes prompts for half a second fills hundreds of
    places before the next writes can begin, so they are as many as are written ahead.
    absent: why vLLM would not call ours to load a chunk from the disk.
    """

    disk: DiskTier

    def __init__(
        self, chunks: int, tokens: int, chunk_bytes: int, region: SharedOffloadRegion, *, events: bool
    ) -> None:
        super().__init__(chunks, tokens, chunk_bytes, events=events, mmap_region=region)
        self.absent = missing_live(LIVE, self)  # before ours replaces it
        self.prepare_write = self._prepare_disk_load
        self.region = region
        self.reserved: Counter[OffloadKey] = Counter()
        self._ahead = max(1, min(_MAX_AHEAD, chunks // 4))
        self.writes = max(_LEAST_WRITES, self._ahead)
        self._changed = True
        self._cold: deque[OffloadKey] = deque()

    def hotness_of(self, key: OffloadKey) -> float:
        """The chunk's rank now."""
        return self.hotness.admission(chunk_key(key))

    def to_write(self) -> list[OffloadKey]:
        """The chunks to be written to the disk now, the coldest first: none while memory has room."""
        if not self._changed or not self.guard.on or self._get_num_free_chunks() > self._ahead:
            return []
        coldest = self.residents.coldest(self._ahead)
        found = [key for key in coldest if key not in self.disk and self._tier(key) is Tier.DISK]
        self._changed = bool(found)
        return found

    def pause_writes(self) -> None:
        """Pauses writes, since the disk accepted none: not again before other chunks are the coldest."""
        self._changed = False

    def complete_store(self, *given: Any, **named: Any) -> None:
        """Chunks were stored, or read from the disk: others may be the coldest now."""
        self._changed = True
        super().complete_store(*given, **named)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        self._count_lost(output)
        return output

    def take_events(self) -> Iterator[OffloadingEvent]:
        """A chunk that may be read back keeps its description until it leaves the disk too."""
        for event in super().take_events():
            event.removal_expected = not event.removed
            yield event

    # -- the decision --------------------------------------------------------------------------------------------------

    def _tier(self, key: OffloadKey) -> Tier:
        """The tier of a chunk for which host memory has no room.

        It is called when the device or host memory is about to evict the chunk. Then it is not recent, and its
        descendants are evicted already.
        """
        frequent = self.settings.admission == "All" or (
            self.hotness.frequency(chunk_key(key)) >= self.residents.least_uses.usual
        )
        facts = NodeFacts(recent=False, frequent=frequent, leaf=True)
        return decide_tier(facts, Pressure.HIGH, host_full=True, disk=self.disk.guard.on)

    def _admitted(self, new: list[OffloadKey], offered: set[OffloadKey]) -> list[OffloadKey]:
        """The chunks worth a place in memory, and those that belong on the disk, on their way there.

        Each of the latter replaces a cold chunk that is on the disk already.
        """
        taken = super()._admitted(new, offered)
        below = takewhile(lambda key: self._tier(key) is Tier.DISK, new[len(taken) :])
        absent = [key for key in below if key not in self.disk]
        return taken + absent[: self.residents.make_way(len(absent), offered, self.disk.__contains__) if absent else 0]

    def _prepare_disk_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Places for chunks of the disk that a request waits for.

        None where everything here is in use or reserved for a waiting request: two requests must not evict each other's
        chunks forever.
        """
        try:
            going = self._choose_victims(len(keys) - self._get_num_free_chunks()) if self.guard.on else None
        except Exception as error:
            self.guard.failed(error)
            going = None
        if going is None:
            return None
        self.residents.evict_next(going)
        output = super(HostTierManager, self).prepare_store(keys, req_context)
        self.residents.evict_next(())
        self._count_lost(output)
        if output is not None and output.keys_to_store:
            self._note_entries(output.keys_to_store, req_context)
        return output

    def _choose_victims(self, number: int) -> list[OffloadKey] | None:
        """The `number` coldest chunks, those on the disk first. None where there are not so many."""
        going: list[OffloadKey] = []
        while len(going) < number:
            if not self._cold:
                fresh = self.residents.coldest(_MAX_AHEAD, {*self.reserved, *going})
                self._cold = deque(sorted(fresh, key=lambda key: key not in self.disk))
            if not self._cold:
                return None
            key = self._cold.popleft()
            if self.residents.is_evictable(key) and key not in self.reserved:
                going.append(key)
        return going

    def step_ended(self) -> None:
        """The next step chooses cold chunks again."""
        self._cold.clear()

    def _count_lost(self, output: PrepareStoreOutput | None) -> None:
        if output is None or not output.evicted_keys or not self.disk.guard.on:
            return
        try:
            lost = sum(key not in self.disk and self._tier(key) is Tier.DISK for key in output.evicted_keys)
            self.counters.add("disk_misses", lost)
            self.disk.evicted_from_host(output.evicted_keys)
        except Exception as error:
            self.disk.guard.failed(error)


class TieredManager(TieringOffloadingManager):
    """memory: vLLM's primary tier.
    disk: the tier below it.
    """

    def __init__(self, memory: MemoryOverDisk, disk: DiskTier) -> None:
        super().__init__(primary_tier=memory, secondary_tiers=[disk])
        memory.disk = disk
        self.memory = memory
        self.disk = disk
        self._reservations: dict[str, set[OffloadKey]] = {}
        self._written = 0

    def attach(self, counters: Counters, parallel: Any) -> None:
        """Begin to use the disk.

        parallel: vLLM's ParallelConfig.
        """
        self.disk.switch_on(counters, [*self.memory.absent, *problems(self, self.memory.region, parallel)])

    # -- look-ups ------------------------------------------------------------------------------------------------------

    def lookup(self, key: OffloadKey, req_context: ReqContext, **named: Any) -> LookupResult:
        """A chunk that is here, or being read, is reserved for the request until it loads it."""
        result = super().lookup(key, req_context, **named)
        if result is not LookupResult.MISS and self.disk.guard.on:
            try:
                self._reserve(key, req_context.req_id)
            except Exception as error:
                self.disk.guard.failed(error)
        return result

    def _reserve(self, key: OffloadKey, request: str) -> None:
        mine = self._reservations.setdefault(request, set())
        if key not in mine:
            mine.add(key)
            self.memory.reserved[key] += 1

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Any:
        spec = super().prepare_load(keys, req_context)
        self._release(req_context.req_id)
        return spec

    def on_request_finished(self, req_context: ReqContext, **named: Any) -> None:
        self._release(req_context.req_id)
        super().on_request_finished(req_context, **named)

    def _release(self, request: str) -> None:
        """After a failure reservations remain, which have no effect without the disk."""
        try:
            for key in self._reservations.pop(request, ()):
                self._unreserve(key)
        except Exception as error:
            self.disk.guard.failed(error)

    def _unreserve(self, key: OffloadKey) -> None:
        reserved = self.memory.reserved
        reserved[key] -= 1
        if not reserved[key]:
            del reserved[key]

    # -- writes --------------------------------------------------------------------------------------------------------

    def _should_store_to_tier(self, *given: Any) -> bool:
        """vLLM asks for every stored chunk; `on_schedule_end` writes instead."""
        return False

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        super().on_schedule_end(context)
        if self.disk.guard.on:
            try:
                self.memory.step_ended()
                self._write_ahead()
            except Exception as error:
                self.disk.guard.failed(error)

    def _write_ahead(self) -> None:
        wanted = self.memory.to_write() if self.disk.write_budget else []
        if not wanted:
            return
        keys = self.disk.make_room(wanted)
        if not keys:
            self.memory.pause_writes()
            return
        self._written += 1
        context = ReqContext(f"plumage-disk-{self._written}")
        self.disk.submit_store(self.create_store_job(keys, context, 0))

    def has_pending_work(self) -> bool:
        """Only for reads: no request waits for a write, so an idle engine need not step for it."""
        try:
            return any(job.transfer_job.is_promotion for job in self._jobs.values())
        except Exception as error:
            self.disk.guard.failed(error)
            return bool(super().has_pending_work())

    def reset_cache(self) -> None:
        """Nothing computed before is valid any more, on the disk neither."""
        super().reset_cache()
        self._reservations.clear()
        self.memory.reserved.clear()
        try:
            self.disk.clear()
        except Exception as error:
            self.disk.guard.failed(error)
