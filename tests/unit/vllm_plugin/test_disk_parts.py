"""The file of the disk tier and the threads that move chunks, without vLLM: real files, a pool of real threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from plumage.errors import ConfigurationError
from plumage.tiering.coldest import ColdestFirst
from plumage_engine.vllm.offload.disk_tier.options import DiskOptions, read_disk
from plumage_engine.vllm.offload.disk_tier.slot_file import DamagedError, SlotFile
from plumage_engine.vllm.offload.disk_tier.transfers import DiskTransfers, Transfer

SIZE = 8192


class TestOptions:
    def test_none(self) -> None:
        assert read_disk({"cpu_bytes_to_use": 1}) is None

    def test_both(self) -> None:
        assert read_disk({"disk_path": "/kv", "disk_bytes_to_use": 7}) == DiskOptions(Path("/kv"), 7)

    @pytest.mark.parametrize(
        ("path", "size", "message"),
        [
            ("/kv", None, "disk_bytes_to_use must be bytes, a whole number above 0, got None"),
            ("/kv", 0, "disk_bytes_to_use must be bytes, a whole number above 0, got 0"),
            ("/kv", True, "disk_bytes_to_use must be bytes, a whole number above 0, got True"),
            (None, 7, "disk_path must be a folder's absolute path, got None"),
            ("kv", 7, "disk_path must be a folder's absolute path, got 'kv'"),
        ],
    )
    def test_mistakes(self, path: object, size: object, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            read_disk({"disk_path": path, "disk_bytes_to_use": size})


class TestSlotFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Iterator[SlotFile]:
        file = SlotFile(tmp_path / "deep" / "kv", SIZE)
        yield file
        file.close()

    def chunk(self, seed: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(seed).integers(-128, 127, SIZE, dtype=np.int8)

    def test_slot_holds_what_was_written_last(self, file: SlotFile) -> None:
        for seed in (1, 2):
            file.write(3, self.chunk(seed))
        file.write(4, self.chunk(5))
        into = np.empty(SIZE, dtype=np.int8)
        file.read(3, into)
        assert np.array_equal(into, self.chunk(2))

    def test_file_has_no_name(self, file: SlotFile, tmp_path: Path) -> None:
        file.write(0, self.chunk(1))
        assert not list((tmp_path / "deep" / "kv").iterdir())

    def test_unwritten_slot_is_damaged(self, file: SlotFile) -> None:
        file.write(1, self.chunk(1))
        with pytest.raises(DamagedError, match="slot 0 holds other bytes"):
            file.read(0, np.empty(SIZE, dtype=np.int8))

    def test_changed_bit_is_found(self, file: SlotFile) -> None:
        file.write(1, self.chunk(1))
        file._file.seek(SIZE + 4000)
        file._file.write(bytes([int(self.chunk(1)[4000]) & 255 ^ 1]))
        with pytest.raises(DamagedError, match="slot 1 holds other bytes"):
            file.read(1, np.empty(SIZE, dtype=np.int8))

    def test_truncated_file_is_found(self, file: SlotFile) -> None:
        file.write(1, self.chunk(1))
        file._file.truncate(SIZE + 100)
        with pytest.raises(DamagedError, match="slot 1 ends after 100 of 8192"):
            file.read(1, np.empty(SIZE, dtype=np.int8))

    def test_impossible_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="Not a directory"):
            SlotFile(tmp_path / "file" / "kv", SIZE)


class TestOrder:
    """The order of the chunks on disk."""

    @pytest.mark.parametrize("rebuild", [1, 1024])
    def test_repeated_chunk_is_stored_once(self, rebuild: int) -> None:
        values = {b"a": 1.0, b"b": 2.0, b"c": 3.0}
        order: ColdestFirst[bytes] = ColdestFirst(values.__getitem__, rebuild)
        for key in values:
            order.add(key)
        for hotness in (1.0, 4.0):
            values[b"a"] = hotness
            order.discard(b"a")
            order.add(b"a")
        read: list[bytes] = []
        order.ask(read.extend)
        assert read == [b"b", b"c", b"a"]
        assert list(order) == [b"b", b"c", b"a"]


class Threads:
    """As vLLM's pool: a job has ended when all its tasks have."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(4)
        self._ended: SimpleQueue[tuple[int, bool, float]] = SimpleQueue()

    def enqueue_load(self, job_id: int, n_tasks: int, tasks: Iterable[Callable[[], None]]) -> None:
        futures = [self._pool.submit(task) for task in tasks]
        assert len(futures) == n_tasks
        self._pool.submit(lambda: [one.result() for one in futures] and self._ended.put((job_id, True, 0.0)))

    enqueue_store = enqueue_load

    def get_finished(self) -> list[tuple[int, bool, float]]:
        return [self._ended.get() for _ in range(self._ended.qsize())]

    def shutdown(self, wait: bool = True) -> None:
        self._pool.shutdown(wait)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Eight rows of memory with one number each, a slot file, threads, and a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.memory = np.repeat(np.arange(8, dtype=np.int8)[:, None], SIZE, axis=1)
        self.file, self.threads, self.clock = SlotFile(folder, SIZE), Threads(), Clock()
        self.io = DiskTransfers(self.file, self.memory, self.threads, self.clock, 10.0)

    def start(self, job: int, slots: list[int], rows: list[int], *, store: bool) -> Transfer:
        transfer = Transfer(job, [b"%d" % slot for slot in slots], slots, rows, store)
        self.io.start(transfer)
        return transfer

    def ended(self, number: int = 1) -> list[Transfer]:
        found: list[Transfer] = []
        deadline = time.monotonic() + 60
        while len(found) < number:
            assert time.monotonic() < deadline
            time.sleep(0.001)
            found += self.io.ended()
        return found


class TestDiskIo:
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        bench = Bench(tmp_path)
        yield bench
        bench.io.close()

    def test_chunks_are_written_and_read_back(self, bench: Bench) -> None:
        down = bench.start(1, [5, 0], [2, 3], store=True)
        assert bench.ended() == [down]
        up = bench.start(2, [0, 5], [6, 7], store=False)
        assert bench.ended() == [up]
        assert (down.done, up.done, up.errors) == ({0, 1}, {0, 1}, {})
        assert (bench.memory[6] == 3).all()
        assert (bench.memory[7] == 2).all()
        assert not len(bench.io)

    def test_one_of_two_chunks_is_damaged(self, bench: Bench) -> None:
        bench.start(1, [0], [2], store=True)
        bench.ended()
        up = bench.start(2, [0, 1], [6, 7], store=False)
        bench.ended()
        assert up.done == {0}
        assert isinstance(up.errors[1], DamagedError)
        assert (bench.memory[7] == 7).all()

    def test_cancelled_job_touches_no_memory(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.start(1, [0], [2], store=True)
        bench.ended()
        gate, read = threading.Event(), SlotFile.read
        monkeypatch.setattr(SlotFile, "read", lambda *given: gate.wait(60) and read(*given))
        up = bench.start(2, [0], [6], store=False)
        up.give_up()
        gate.set()
        assert bench.ended() == [up]
        assert not up.done
        assert (bench.memory[6] == 6).all()

    def test_chunk_that_never_ends_is_given_up(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        gate = threading.Event()
        monkeypatch.setattr(SlotFile, "write", lambda *given: gate.wait(60))
        transfer = bench.start(1, [0], [2], store=True)
        deadline = time.monotonic() + 60
        while not transfer.begun and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not bench.io.too_slow()
        bench.clock.now = 11.0
        assert bench.io.too_slow() == "a chunk of 8192 bytes has not been read or written in 10 s"
        gate.set()
        bench.ended()

    def write(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, chunks: int, seconds: float) -> None:
        """One after the other, each in so many seconds. Between two of them nothing moves for a minute."""

        def slowly(self: SlotFile, slot: int, data: object) -> None:
            bench.clock.now += seconds

        monkeypatch.setattr(SlotFile, "write", slowly)
        for job in range(chunks):
            assert not bench.io.too_slow()
            bench.start(job, [0], [2], store=True)
            bench.ended()
            bench.clock.now += 60.0

    def test_pace_slower_than_computing_pauses_the_disk(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write(bench, monkeypatch, chunks=3, seconds=4.0)
        assert bench.io.too_slow() == "the last transfers took 12 s, 0 s were allowed"
        assert not bench.io.too_slow()

    def test_sufficient_pace_keeps_the_disk_in_use(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write(bench, monkeypatch, chunks=300, seconds=0.04)
        assert not bench.io.too_slow()
