"""The disk as a tier of vLLM's below host memory: what lies there, and what goes when it is full.

Everything here is asked between two steps of the engine and waits for nothing. Whether a chunk lies on the disk is
known in memory, so that a look-up costs no request a step, as it does with vLLM's own tier of files. Whatever goes
wrong with the disk switches it off: what it held is a miss from then on, and who waits for a chunk computes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from plumage.errors import PlumageError
from plumage.tiering import TierNode, plan_admission
from plumage.tiering.coldest import REBUILD, ColdestFirst
from plumage_engine.vllm.compat.kv_tiering import (
    JobResult,
    LookupResult,
    Medium,
    OffloadingEvent,
    RequestOffloadingContext,
    SecondaryTierManager,
    TransferJob,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.disk_tier.slot_file import DamagedError
from plumage_engine.vllm.offload.disk_tier.transfers import DiskIo, Transfer
from plumage_engine.vllm.offload.host_tier.residents import chunk_key

__all__ = ["DiskTier"]

Key = bytes
_MOST_WRITING: Final = 64
"""Chunks on their way down at once: each keeps its place in host memory until it is written."""


class _SlowError(PlumageError):
    """The disk hangs, or is slower than computing anew."""


class DiskTier(SecondaryTierManager):
    """spec, view: vLLM's, of host memory. io: the copies; None where there can be no disk, and `problem` says why.
    slots: of the file. hotness: of a chunk's key, now. events: whether to tell what comes and goes."""

    medium = Medium.STORAGE

    def __init__(
        self,
        spec: Any,
        view: memoryview,
        io: DiskIo | None,
        slots: int,
        hotness: Callable[[Key], float],
        *,
        events: bool,
        problem: str = "",
    ) -> None:
        super().__init__(spec, view, "disk")
        self.guard = Guard("disk", Counters())
        self.guard.on = False
        self._io = io
        self._problem = problem
        self._hotness = hotness
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._places: dict[Key, int] = {}
        self._order: ColdestFirst[Key] = ColdestFirst(hotness, max(REBUILD, slots))
        self._kept: dict[Key, int] = {}  # slots promised to chunks that are about to be written
        self._refused: set[Key] = set()  # of the chunks in host memory, those that have been counted as refused
        self._writing: dict[int, Transfer] = {}
        self._reading: dict[int, Transfer] = {}
        self._results: list[JobResult] = []
        self._told: list[OffloadingEvent] = []
        self._tells = events
        self._counters = Counters()

    def switch_on(self, counters: Counters, reasons: Sequence[str]) -> None:
        """Begin to work, unless there are reasons against it. Until then nothing is written."""
        self._counters = counters
        self.guard = Guard("disk", counters, self._stop)
        if reasons := [*([self._problem] if self._problem else []), *reasons]:
            self.guard.refuse(reasons)

    def __len__(self) -> int:
        """Chunks that lie on the disk whole."""
        return len(self._places)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    @property
    def moving(self) -> int:
        """Chunks on their way down or up."""
        return sum(len(one.keys) for one in (*self._writing.values(), *self._reading.values()))

    # -- room --------------------------------------------------------------------------------------------------------

    @property
    def may_begin(self) -> int:
        """Chunks whose way down may begin now."""
        return _MOST_WRITING - sum(len(one.keys) for one in self._writing.values())

    def make_room(self, keys: Iterable[Key]) -> list[Key]:
        """Those of `keys` that may be written now, in `submit_store`: as many as may be on their way at once, each into
        a free place or that of a colder chunk."""
        room = self.may_begin
        coming = {key for one in self._writing.values() for key in one.keys}
        taken: list[Key] = []
        for key in keys:
            if len(taken) >= room:
                break
            if key in self._places or key in coming:
                continue
            slot = self._free.pop() if self._free else self._displace(key)
            if slot is None:
                self._refuse(key)
                continue
            self._kept[key] = slot
            taken.append(key)
        return taken

    def _refuse(self, key: Key) -> None:
        """It may be asked about often while it is in host memory, and counts once."""
        if key not in self._refused:
            self._refused.add(key)
            self._counters.add("disk_refusals")

    def left(self, keys: Iterable[Key]) -> None:
        """Chunks went from host memory, those among them that were refused as well."""
        self._refused.difference_update(keys)

    def _displace(self, key: Key) -> int | None:
        """The place of a chunk that goes for `key`, which is hotter."""
        reading = {one for transfer in self._reading.values() for one in transfer.keys}
        gone: list[Key] = []

        def choose(coldest: Iterator[Key]) -> None:
            names: dict[int, Key] = {}
            plan = plan_admission(self._node(key), self._going(coldest, reading, names), 0, 0)
            gone.extend(names[victim.key] for victim in plan.victims)

        self._order.ask(choose)
        return self._drop(gone[0]) if gone else None

    def _going(self, coldest: Iterator[Key], reading: Collection[Key], names: dict[int, Key]) -> Iterator[TierNode]:
        for key in coldest:
            if key not in reading:
                node = self._node(key)
                names[node.key] = key
                yield node

    def _node(self, key: Key) -> TierNode:
        return TierNode(chunk_key(key), None, 1, 0, self._hotness(key))

    def _drop(self, key: Key) -> int:
        """The chunk is on the disk no more; its place is the caller's."""
        self._order.discard(key)
        self._tell([key], removed=True)
        return self._places.pop(key)

    # -- as vLLM's manager of tiers asks -----------------------------------------------------------------------------

    def lookup(self, key: Key, req_context: object) -> LookupResult:
        try:
            return LookupResult.HIT if self.guard.on and key in self else LookupResult.MISS
        except Exception as error:
            self.guard.failed(error)
            return LookupResult.MISS

    def on_new_request(self, req_context: object) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Chunks that `make_room` took."""
        self._try(self._writing, job_metadata, self._kept.pop)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Chunks that a look-up found. Nothing leaves the disk between the two, but it may have been switched off."""
        self._try(self._reading, job_metadata, self._places.__getitem__)

    def _try(self, among: dict[int, Transfer], job: TransferJob, slot: Callable[[Key], int]) -> None:
        """Begin it; where that fails, or the disk is off, it counts as failed: vLLM lets go of its chunks."""
        if self.guard.on:
            try:
                keys = list(job.keys)
                store = among is self._writing
                self._start(among, Transfer(job.job_id, keys, [*map(slot, keys)], job.chunk_ids.tolist(), store))
                return
            except Exception as error:
                self.guard.failed(error)
        if all(result.job_id != job.job_id for result in self._results):  # else `_stop` gave it up
            self._results.append(JobResult(job.job_id, False))

    def _start(self, among: dict[int, Transfer], transfer: Transfer) -> None:
        assert self._io is not None
        among[transfer.job] = transfer
        self._io.start(transfer)

    def get_finished_jobs(self) -> list[JobResult]:
        """What has ended, well or not, since it was asked last."""
        try:
            if self._io is not None:
                self._look_at(self._io)
        except Exception as error:
            self.guard.failed(error)
        results, self._results = self._results, []
        return results

    def _look_at(self, io: DiskIo) -> None:
        for transfer in io.ended():
            if transfer.wanted:
                self._settle(transfer)
            elif transfer.store:
                self._free += transfer.slots
        if self.guard.on and (slow := io.too_slow()):
            self.guard.failed(_SlowError(slow))

    def take_events(self) -> list[OffloadingEvent]:
        told, self._told = self._told, []
        return told

    def drain_jobs(self) -> None:
        """Host memory is about to be used anew: give up what is under way, however long the disk would take."""
        for transfer in [*self._writing.values(), *self._reading.values()]:
            self._give_up(transfer)

    def forget(self) -> None:
        """Caches were reset, with new weights perhaps: nothing here is true any more. `AllBlocksCleared` tells it."""
        self._free += self._places.values()
        self._places.clear()
        self._order.clear()
        self._refused.clear()
        self._told.clear()

    def shutdown(self) -> None:
        """Waits for no disk."""
        self.guard.on = False
        if self._io is not None:
            self._io.close()

    # -- the ends of transfers ---------------------------------------------------------------------------------------

    def _settle(self, transfer: Transfer) -> None:
        """Its threads have come back. Its result is told first: whatever fails after that, vLLM must have it once."""
        done = [key for place, key in enumerate(transfer.keys) if place in transfer.done]
        wrote = self._writing.pop(transfer.job, None) is not None
        if not wrote:
            del self._reading[transfer.job]
        self._results.append(
            JobResult(
                transfer.job,
                len(done) == len(transfer.keys),
                successful_keys=done or None,
                transfer_time=transfer.seconds,
                transfer_bytes=len(done) * self.block_size_bytes,
            )
        )
        (self._written if wrote else self._read)(transfer, done)
        broken = next((error for error in transfer.errors.values() if not isinstance(error, DamagedError)), None)
        if broken is not None:
            self.guard.failed(broken)

    def _written(self, transfer: Transfer, done: list[Key]) -> None:
        for place, (key, slot) in enumerate(zip(transfer.keys, transfer.slots, strict=True)):
            if place in transfer.done:
                self._places[key] = slot
                self._order.add(key)
            else:
                self._free.append(slot)
        self._counters.add("disk_writes", len(done))
        self._tell(done, removed=False)

    def _read(self, transfer: Transfer, done: list[Key]) -> None:
        self._counters.add("disk_reads", len(done))
        for place, error in transfer.errors.items():
            self._free.append(self._drop(transfer.keys[place]))
            if isinstance(error, DamagedError):
                self._counters.add("disk_damaged")

    def _give_up(self, transfer: Transfer) -> None:
        """It counts as failed at once. A slot that is written to is free when its thread comes back (`ended`)."""
        transfer.give_up()
        self._writing.pop(transfer.job, None)
        self._reading.pop(transfer.job, None)
        self._results.append(JobResult(transfer.job, False))

    def _tell(self, keys: Sequence[Key], *, removed: bool) -> None:
        if self._tells and keys:
            event = OffloadingEvent(list(keys), self.medium, removed, removal_expected=not removed)
            self._told.append(event)

    def _stop(self) -> None:
        """The guard is off: nothing is asked of the disk any more, and its file is given back."""
        self.drain_jobs()
        self._tell(list(self._places), removed=True)
        self._places.clear()
        self._order.clear()
        self._refused.clear()
        if self._io is not None:
            self._io.close()
            self._io = None
