"""The disk below host memory, with vLLM's real scheduler and connector and a real file: what is written and read, and
that any failure of the disk is only a cache miss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.offload_tier import Tier, chain
from vllm.v1.kv_offload.tiering.fs import thread_pool

from plumage_engine.vllm.compat.kv_tiering import DualQueueThreadPool
from plumage_engine.vllm.offload.disk_tier.slot_file import SlotFile
from plumage_engine.vllm.offload.disk_tier.transfers import DiskTransfers, Transfer

Start = Callable[..., Tier]


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path) -> Iterator[Start]:
    """A tier with 16 blocks of host memory, a device of 16 blocks and a disk of 64."""
    made: list[Tier] = []

    def make(**named: Any) -> Tier:
        chosen = {"blocks": 17, "chunks": 16, "disk": (tmp_path / "kv", 64), "promotion": "Off", "min_frequency": 1}
        made.append(Tier(tiny_model, **{**chosen, **named}))
        return made[-1]

    yield make
    for tier in made:
        tier.close()


def fill(tier: Tier, prefixes: int = 9, blocks: int = 4) -> None:
    """This many prefixes, one after the other, each three times: more than device and host memory have room for."""
    for prefix in range(prefixes):
        use(tier, prefix, blocks=blocks)


def use(tier: Tier, prefix: int, times: int = 3, blocks: int = 4) -> set[bytes]:
    """Use one prefix this many times. Returns the hashes of its blocks."""
    for turn in range(times):
        name = f"{prefix}.{turn}.{tier.engine.steps}"
        tier.serve(name, chain(prefix, blocks))
        tier.finish_transfers()
        tier.check()
    return set(tier.engine.requests[name].block_hashes)


def on_disk(tier: Tier) -> set[bytes]:
    """Hashes of the blocks on the disk."""
    return {key[:-4] for key in tier.disk._slot_of}


@pytest.mark.parametrize(("chunks", "writes"), [(16, 64), (400, 100), (8000, 1024)])
def test_a_larger_memory_is_written_by_more_chunks_at_once(start: Start, chunks: int, writes: int) -> None:
    """Else a step that fills many places overwrites chunks before they are on the disk."""
    assert start(chunks=chunks).disk.write_budget == writes


def found(tier: Tier, prefix: int, blocks: int = 4) -> int:
    """Prompt tokens of the prefix that another request finds in host memory or on the disk."""
    name = f"again {prefix} {tier.engine.steps}"
    tier.serve(name, chain(prefix, blocks) + chain(900 + prefix, 1)[:5])
    return tier.engine.cached[name][1]


class TestPlacement:
    def test_evicted_chunks_load_from_disk(self, start: Start) -> None:
        tier = start()
        fill(tier)
        assert len(tier.manager.residents) == 16
        assert tier.counters.get("disk_writes") >= 20
        assert found(tier, 0) == 4 * 32
        assert tier.counters.get("disk_reads") >= 1
        tier.finish_transfers()
        tier.check_idle()

    def test_evicted_chunks_are_lost_without_disk(self, start: Start) -> None:
        tier = start(disk=None)
        for prefix in range(9):
            for turn in range(3):
                tier.serve(f"{prefix}.{turn}", chain(prefix, 4))
        assert sum(found(tier, prefix) for prefix in range(5)) <= 16 * 32

    def test_rare_chunks_are_not_written(self, start: Start) -> None:
        tier = start(min_frequency=9)
        fill(tier)
        assert tier.counters.get("disk_writes") == 0
        assert len(tier.disk) == 0

    def test_disk_is_unused_while_memory_has_room(self, start: Start) -> None:
        tier = start(chunks=200)
        fill(tier)
        assert tier.counters.get("disk_writes") == 0

    @pytest.mark.parametrize("hotter_first", [True, False])
    def test_full_disk_keeps_hotter_chunks(self, start: Start, tmp_path: Path, hotter_first: bool) -> None:
        """The disk may be full of the hotter blocks when the colder ones arrive, or the other way round."""
        tier = start(disk=(tmp_path / "kv", 6), priority="frequency")
        first = set().union(*(use(tier, prefix, 9 if hotter_first else 3) for prefix in range(5)))
        before = on_disk(tier)
        assert len(before) == 6
        assert before <= first
        then = set().union(*(use(tier, prefix, 3 if hotter_first else 9) for prefix in range(5, 9)))
        after = on_disk(tier)
        assert len(after) == 6
        assert after == before if hotter_first else after <= then
        assert tier.counters.get("disk_refusals")

    def test_refusing_disk_is_not_asked_at_each_step(
        self, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tier = start(disk=(tmp_path / "kv", 6), priority="frequency")
        fill(tier, prefixes=5)
        tier.serve("the last copies end", chain(900, 1)[:5], answer=20)
        refused = tier.counters.get("disk_refusals")
        assert refused
        asked: list[object] = []
        monkeypatch.setattr(tier.disk, "make_room", lambda keys: asked.extend(keys) or [])
        before = tier.engine.steps
        tier.serve("stores nothing", chain(901, 1)[:5], answer=20)
        assert tier.engine.steps - before >= 20
        assert not asked
        assert tier.counters.get("disk_refusals") == refused

    def test_refusal_counts_once_per_chunk(self, start: Start, tmp_path: Path) -> None:
        tier = start(disk=(tmp_path / "kv", 6), priority="frequency")
        fill(tier, prefixes=5)
        cold = [key for key in tier.manager.residents.coldest(16) if key not in tier.disk]
        assert cold
        assert tier.disk.make_room(cold) == []
        refused = tier.counters.get("disk_refusals")
        assert tier.disk.make_room(cold) == []
        assert tier.counters.get("disk_refusals") == refused
        tier.disk.evicted_from_host(cold[:2])
        assert tier.disk.make_room(cold) == []
        assert tier.counters.get("disk_refusals") == refused + 2
        fill(tier, prefixes=9)
        assert tier.disk._refused
        assert tier.disk._refused <= {key for key, _ in tier.manager.residents.items()}
        assert tier.engine.reset()
        assert not tier.disk._refused

    def test_chunk_of_two_blocks_loads_from_disk(self, start: Start) -> None:
        tier = start(connector={"blocks_per_chunk": 2})
        fill(tier)
        assert tier.counters.get("disk_writes")
        assert found(tier, 0) == 4 * 32

    def test_requests_larger_than_memory_finish(self, start: Start) -> None:
        tier = start(blocks=25, chunks=6)
        fill(tier, prefixes=4, blocks=5)
        for prefix in (0, 1, 2):
            tier.engine.add(f"both {prefix}", chain(prefix, 5) + chain(700 + prefix, 1)[:9], 2)
        tier.engine.finish(20_000)
        tier.finish_transfers()
        tier.check_idle()


class TestEvents:
    def test_events_list_chunks_on_disk(self, start: Start) -> None:
        from vllm.config import KVEventsConfig

        events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        tier = start(arguments={"kv_events_config": events})
        media: dict[str, dict[int, int]] = {"CPU": {}, "STORAGE": {}}
        events_sent: list[Any] = []
        tier.engine.scheduler.kv_event_publisher.publish = lambda batch: events_sent.extend(batch.events)
        fill(tier)
        found(tier, 0)
        tier.engine.step()
        for event in events_sent:
            held = media.get(event.medium)
            for block in event.block_hashes if held is not None else ():
                held[block] = held.get(block, 0) + (1 if type(event).__name__ == "BlockStored" else -1)
        stored = [event for event in events_sent if type(event).__name__ == "BlockStored" and event.medium == "STORAGE"]
        assert all(len(event.token_ids) == event.block_size == 32 for event in stored)
        assert set(media["STORAGE"].values()) | set(media["CPU"].values()) <= {0, 1}
        assert sum(media["STORAGE"].values()) == len(tier.disk)
        assert sum(media["CPU"].values()) == len(tier.manager.residents)

    def test_vllm_metrics_name_disk(self, start: Start) -> None:
        tier = start()
        fill(tier)
        found(tier, 0)
        stats = tier.connector.get_stats()
        assert stats is not None
        assert "1:disk" in str(stats)


class TestErrors:
    def refused(self, tier: Tier, reason: str) -> None:
        assert not tier.disk.guard.on
        assert reason in tier.disk.guard.reason
        fill(tier, prefixes=3)
        tier.engine.finish()

    def test_uncreatable_folder_is_refused(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        self.refused(start(disk=(tmp_path / "file" / "kv", 64)), "nothing can be written to")

    def test_too_little_room_is_refused(self, start: Start, tmp_path: Path) -> None:
        self.refused(start(disk=(tmp_path / "kv", 1 << 45)), "bytes free")

    def test_size_below_one_chunk_is_refused(self, start: Start) -> None:
        self.refused(start(connector={"disk_path": "/tmp", "disk_bytes_to_use": 5}, disk=None), "less than one chunk")

    def test_damaged_slots_are_misses(self, start: Start) -> None:
        tier = start()
        fill(tier)
        file: SlotFile = tier.disk._io._file
        for slot in tier.disk._slot_of.values():
            file._file.seek(slot * file.size)
            file._file.write(b"\1")
        there = len(tier.disk)
        assert found(tier, 0) < 4 * 32
        assert tier.counters.get("disk_damaged") >= 3
        assert len(tier.disk) < there
        assert tier.disk.guard.on
        tier.finish_transfers()
        tier.check_idle()

    def test_truncated_file_is_a_miss(self, start: Start) -> None:
        tier = start()
        fill(tier)
        tier.disk._io._file._file.truncate(0)
        assert found(tier, 0) < 4 * 32
        assert tier.counters.get("disk_damaged")
        assert tier.disk.guard.on

    def test_read_error_is_not_damage(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        tier = start()
        fill(tier)

        def broken(self: SlotFile, slot: int, into: Any) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(SlotFile, "read", broken)
        assert found(tier, 0) < 4 * 32
        assert not tier.counters.get("disk_damaged")
        assert not tier.disk.guard.on
        assert tier.disk.guard.reason == "OSError: [Errno 5] Input/output error"
        assert tier.counters.get("failures", "disk") == 1
        tier.check()

    def test_full_file_system_disables_only_disk(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        tier = start()
        fill(tier, prefixes=7)
        wrote, there = tier.counters.get("disk_writes"), len(tier.disk)

        def full(self: SlotFile, slot: int, data: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(SlotFile, "write", full)
        for prefix in range(20, 26):
            tier.serve(f"{prefix}", chain(prefix, 4))
            tier.finish_transfers()
        assert there
        assert not tier.disk.guard.on
        assert "No space left" in tier.disk.guard.reason
        assert tier.counters.get("failures", "disk") == 1
        assert tier.counters.get("disk_writes") == wrote
        assert len(tier.disk) == 0
        tier.check()

    def test_hanging_disk_blocks_no_request(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request that waits for the disk computes its prompt itself. A reset does not wait for it either."""
        tier = start()
        fill(tier)
        gate, read = threading.Event(), SlotFile.read

        def hangs(self: SlotFile, slot: int, into: Any) -> None:
            gate.wait(300)
            read(self, slot, into)

        monkeypatch.setattr(SlotFile, "read", hangs)
        tier.engine.add("waits", chain(0, 4) + chain(901, 1)[:5], 2)
        for _ in range(20):
            tier.engine.step()
        assert tier.disk.in_transfer
        assert tier.disk.guard.on
        monkeypatch.setattr(tier.disk._io, "_timeout", 0.0)
        tier.engine.finish(10_000)
        assert "has not been read or written" in tier.disk.guard.reason
        assert tier.engine.cached["waits"][1] < 4 * 32
        gate.set()
        assert tier.engine.reset()
        tier.serve("after", chain(3, 4))


class SharedDisk:
    """Six chunks of 2 MB each are written at the same time and share one disk's bandwidth. vLLM's own threads write
    them, with a fake clock: it advances when all six have started, and by a minute between two jobs."""

    threads, size, timeout = 6, 2_000_000, 10.0

    def __init__(self, folder: Path, pace: float, patch: pytest.MonkeyPatch) -> None:
        self.now, self.pace = 0.0, pace
        self.met = threading.Barrier(self.threads, self.pass_time, timeout=120)
        patch.setattr(thread_pool, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(SlotFile, "write", lambda *given: self.met.wait())
        self.pool = DualQueueThreadPool(4, 2)
        memory = np.zeros((self.threads, self.size), dtype=np.int8)
        self.io = DiskTransfers(SlotFile(folder, self.size), memory, self.pool, lambda: self.now, self.timeout)

    def pass_time(self) -> None:
        self.now += self.threads * self.size / self.pace

    def write(self, chunks: int, at_once: int = 60) -> float:
        """Seconds that vLLM's pool counts for them."""
        charged = 0.0
        for job in range(chunks // at_once):
            slots = list(range(at_once))
            keys = [b"%d" % slot for slot in slots]
            self.io.start(Transfer(job, keys, slots, [slot % self.threads for slot in slots], store=True))
            self.pool.wait_idle()
            self.now += 60.0
            charged += sum(transfer.seconds for transfer in self.io.ended())
        return charged


class TestPace:
    @pytest.fixture
    def shared(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], SharedDisk]]:
        made: list[SharedDisk] = []

        def make(pace: float) -> SharedDisk:
            made.append(SharedDisk(tmp_path, pace, monkeypatch))
            return made[-1]

        yield make
        for disk in made:
            disk.io.close()

    def test_fast_shared_disk_is_not_too_slow(self, shared: Callable[[float], SharedDisk]) -> None:
        """59 MB/s: 300 chunks take 10 s. Each one takes 0.2 s, and alone a chunk may take 0.15 s."""
        disk = shared(59e6)
        assert disk.write(300) == pytest.approx(6 * 300 * disk.size / 59e6)
        assert not disk.io.too_slow()

    def test_slow_shared_disk_is_reported(self, shared: Callable[[float], SharedDisk]) -> None:
        disk = shared(10e6)
        disk.write(300)
        assert disk.io.too_slow() == "the last transfers took 60 s, 45 s were allowed"


class TestResets:
    def test_reset_empties_disk(self, start: Start) -> None:
        tier = start()
        fill(tier)
        assert tier.engine.reset()
        assert len(tier.disk) == 0
        tier.check_idle()
        assert found(tier, 0) == 0

    def test_reset_during_copy_ignores_late_result(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        """The places are used again before the threads of the old copies return. Their late results must have no
        effect."""
        tier = start()
        gate, write = threading.Event(), SlotFile.write

        def late(self: SlotFile, slot: int, data: Any) -> None:
            gate.wait(300)
            write(self, slot, data)

        monkeypatch.setattr(SlotFile, "write", late)
        for prefix in range(6):
            tier.serve(f"{prefix}", chain(prefix, 4))
        assert tier.disk.in_transfer
        assert tier.engine.reset()
        assert not tier.disk.in_transfer
        tier.check()
        gate.set()
        monkeypatch.setattr(SlotFile, "write", write)
        fill(tier)
        assert found(tier, 0) == 4 * 32
