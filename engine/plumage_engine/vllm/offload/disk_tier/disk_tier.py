"""The disk as a tier of vLLM's below host memory: which chunks it stores, and which are evicted when it is full.

Every call here runs between two steps of the engine and waits for nothing. Memory knows which chunks are on the disk,
so a look-up costs a request no step, unlike vLLM's own tier of files. Any failure of the disk switches it off: its
chunks are misses from then on, and requests that wait for one compute it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

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
from plumage_engine.vllm.offload.disk_tier.transfers import DiskTransfers, Transfer
from plumage_engine.vllm.offload.host_tier.residents import chunk_key

__all__ = ["DiskTier"]

Key = bytes


class _TooSlowError(PlumageError):
    """The disk hangs, or reading from it is slower than computing again."""


class DiskTier(SecondaryTierManager):
    """spec, view: vLLM's, of host memory.
    io: the copies; None where the disk can't be used, and `problem` says why.
    slots: of the file.
    writes: chunks that are written at once, at most. Each keeps its place in host memory until it is written.
    hotness: of a chunk's key, now.
    events: whether to publish stored and removed chunks.
    """

    medium = Medium.STORAGE

    def __init__(
        self,
        spec: Any,
        view: memoryview,
        io: DiskTransfers | None,
        slots: int,
        writes: int,
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
        self._writes = writes
        self._free = list(range(slots - 1, -1, -1))
        self._slot_of: dict[Key, int] = {}
        self._order: ColdestFirst[Key] = ColdestFirst(hotness, max(REBUILD, slots))
        self._reserved: dict[Key, int] = {}  # slots reserved for chunks that will be written next
        self._refused: set[Key] = set()  # chunks in host memory that were counted as refused
        self._writing: dict[int, Transfer] = {}
        self._reading: dict[int, Transfer] = {}
        self._results: list[JobResult] = []
        self._events: list[OffloadingEvent] = []
        self._publish_events = events
        self._counters = Counters()

    def switch_on(self, counters: Counters, reasons: Sequence[str]) -> None:
        """Begin to work, unless there are reasons against it. Until then nothing is written."""
        self._counters = counters
        self.guard = Guard("disk", counters, self._stop)
        if reasons := [*([self._problem] if self._problem else []), *reasons]:
            self.guard.refuse(reasons)

    def __len__(self) -> int:
        """Chunks that are on the disk completely."""
        return len(self._slot_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._slot_of

    @property
    def in_transfer(self) -> int:
        """Chunks that are being written or read."""
        return sum(len(one.keys) for one in (*self._writing.values(), *self._reading.values()))

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def write_budget(self) -> int:
        """Chunks whose writing may begin now."""
        return self._writes - sum(len(one.keys) for one in self._writing.values())

    def make_room(self, keys: Iterable[Key]) -> list[Key]:
        """Returns the `keys` that may be written now, by `submit_store`: within the budget, each into a free slot or a
        colder chunk's.
        """
        room = self.write_budget
        coming = {key for one in self._writing.values() for key in one.keys}
        taken: list[Key] = []
        for key in keys:
            if len(taken) >= room:
                break
            if key in self._slot_of or key in coming:
                continue
            slot = self._free.pop() if self._free else self._evict_for(key)
            if slot is None:
                self._refuse(key)
                continue
            self._reserved[key] = slot
            taken.append(key)
        return taken

    def _refuse(self, key: Key) -> None:
        """Count a refused chunk once, though it may be offered often while it is in host memory."""
        if key not in self._refused:
            self._refused.add(key)
            self._counters.add("disk_refusals")

    def evicted_from_host(self, keys: Iterable[Key]) -> None:
        """Chunks left host memory; forget which of them were refused."""
        self._refused.difference_update(keys)

    def _evict_for(self, key: Key) -> int | None:
        """The slot of a colder chunk, which is evicted for `key`; None where there is none."""
        reading = {one for transfer in self._reading.values() for one in transfer.keys}
        gone: list[Key] = []

        def choose(coldest: Iterator[Key]) -> None:
            names: dict[int, Key] = {}
            plan = plan_admission(self._node(key), self._evictable_nodes(coldest, reading, names), 0, 0)
            gone.extend(names[victim.key] for victim in plan.victims)

        self._order.ask(choose)
        return self._remove(gone[0]) if gone else None

    def _evictable_nodes(
        self, coldest: Iterator[Key], reading: Collection[Key], names: dict[int, Key]
    ) -> Iterator[TierNode]:
        for key in coldest:
            if key not in reading:
                node = self._node(key)
                names[node.key] = key
                yield node

    def _node(self, key: Key) -> TierNode:
        return TierNode(chunk_key(key), None, 1, 0, self._hotness(key))

    def _remove(self, key: Key) -> int:
        """Remove the chunk from the disk and return its slot."""
        self._order.discard(key)
        self._add_event([key], removed=True)
        return self._slot_of.pop(key)

    # -- calls by vLLM's manager of tiers ------------------------------------------------------------------------------

    def lookup(self, key: Key, req_context: object) -> LookupResult:
        try:
            return LookupResult.HIT if self.guard.on and key in self else LookupResult.MISS
        except Exception as error:
            self.guard.failed(error)
            return LookupResult.MISS

    def on_new_request(self, req_context: object) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Write chunks that `make_room` returned."""
        self._try(self._writing, job_metadata, self._reserved.pop)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Read chunks that a look-up found. None leaves the disk between the two, but it may have been switched off."""
        self._try(self._reading, job_metadata, self._slot_of.__getitem__)

    def _try(self, among: dict[int, Transfer], job: TransferJob, slot: Callable[[Key], int]) -> None:
        """Begin the job; where that fails or the disk is off, the job fails and vLLM releases its chunks."""
        if self.guard.on:
            try:
                keys = list(job.keys)
                store = among is self._writing
                self._start(among, Transfer(job.job_id, keys, [*map(slot, keys)], job.chunk_ids.tolist(), store))
                return
            except Exception as error:
                self.guard.failed(error)
        if all(result.job_id != job.job_id for result in self._results):  # else `_stop` has given it up
            self._results.append(JobResult(job.job_id, False))

    def _start(self, among: dict[int, Transfer], transfer: Transfer) -> None:
        assert self._io is not None
        among[transfer.job] = transfer
        self._io.start(transfer)

    def get_finished_jobs(self) -> list[JobResult]:
        """Jobs that ended since the last call, with or without success."""
        try:
            if self._io is not None:
                self._collect_ended(self._io)
        except Exception as error:
            self.guard.failed(error)
        results, self._results = self._results, []
        return results

    def _collect_ended(self, io: DiskTransfers) -> None:
        for transfer in io.ended():
            if transfer.wanted:
                self._end_transfer(transfer)
            elif transfer.store:
                self._free += transfer.slots
        if self.guard.on and (slow := io.too_slow()):
            self.guard.failed(_TooSlowError(slow))

    def take_events(self) -> list[OffloadingEvent]:
        events, self._events = self._events, []
        return events

    def drain_jobs(self) -> None:
        """Give up all transfers, because host memory is about to be reused, however slow the disk is."""
        for transfer in [*self._writing.values(), *self._reading.values()]:
            self._give_up(transfer)

    def clear(self) -> None:
        """Caches were reset, perhaps for new weights: no chunk is valid. `AllBlocksCleared` publishes it."""
        self._free += self._slot_of.values()
        self._slot_of.clear()
        self._order.clear()
        self._refused.clear()
        self._events.clear()

    def shutdown(self) -> None:
        """Does not wait for the disk."""
        self.guard.on = False
        if self._io is not None:
            self._io.close()

    # -- the ends of transfers -----------------------------------------------------------------------------------------

    def _end_transfer(self, transfer: Transfer) -> None:
        """The threads have ended. The result is appended first: vLLM must get it once even if the rest fails."""
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
                self._slot_of[key] = slot
                self._order.add(key)
            else:
                self._free.append(slot)
        self._counters.add("disk_writes", len(done))
        self._add_event(done, removed=False)

    def _read(self, transfer: Transfer, done: list[Key]) -> None:
        self._counters.add("disk_reads", len(done))
        for place, error in transfer.errors.items():
            self._free.append(self._remove(transfer.keys[place]))
            if isinstance(error, DamagedError):
                self._counters.add("disk_damaged")

    def _give_up(self, transfer: Transfer) -> None:
        """Fails the transfer at once. A slot being written is free when its thread has ended (`ended`)."""
        transfer.give_up()
        self._writing.pop(transfer.job, None)
        self._reading.pop(transfer.job, None)
        self._results.append(JobResult(transfer.job, False))

    def _add_event(self, keys: Sequence[Key], *, removed: bool) -> None:
        if self._publish_events and keys:
            event = OffloadingEvent(list(keys), self.medium, removed, removal_expected=not removed)
            self._events.append(event)

    def _stop(self) -> None:
        """Drops all chunks and closes the file: the guard is off."""
        self.drain_jobs()
        self._add_event(list(self._slot_of), removed=True)
        self._slot_of.clear()
        self._order.clear()
        self._refused.clear()
        if self._io is not None:
            self._io.close()
            self._io = None
