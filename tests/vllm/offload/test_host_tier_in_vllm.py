"""The host tier in a whole engine on the CPU: the same answers with it and without it, and configurations that vLLM
refuses at start."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.offload_tier import SENT, chain
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, GPULoadStoreSpec
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from plumage.errors import ConfigurationError, StateError
from plumage.settings.engine_policies import HostTierConfig
from plumage_bench.vllm.engine import Engine, Prompt, Run, plugin_arguments
from plumage_bench.vllm.pretend import PretendEngine, host_tier_arguments
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.host_tier.copy_worker import TorchWorker
from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager
from plumage_engine.vllm.offload.install import install
from plumage_engine.vllm.settings import ENVIRONMENT

_SMALL = {"num_gpu_blocks_override": 40, "max_num_seqs": 6, "max_num_batched_tokens": 384}
_alone: list[Run] = []  # vLLM's own answers to `_prompts(1)`; computed once


def _prompts(seed: int) -> list[Prompt]:
    rng = random.Random(seed)
    return [
        Prompt(
            f"r{number}",
            chain(min(7, int(rng.expovariate(0.4))), rng.randrange(1, 8))
            + chain(1000 + number, 2)[: rng.randrange(1, 60)],
            answer=rng.randrange(4, 40),
            step=3 * number,
            abort=rng.randrange(2, 12) if rng.random() < 0.1 else None,
        )
        for number in range(60)
    ]


def _plain(start_engine: Callable[..., Engine]) -> Run:
    """The answers of vLLM without host memory."""
    if not _alone:
        _alone.append(start_engine(**_SMALL).serve(_prompts(1)))
    return _alone[0]


def _same(plain: Run, run: Run) -> None:
    """Aborted answers are compared up to their last token."""
    for name, answer in run.answers.items():
        wanted = plain.answers[name].tokens
        length = min(len(wanted), len(answer.tokens))
        assert answer.tokens[:length] == wanted[:length]
        assert answer.finished == plain.answers[name].finished


def _nothing_left(engine: Engine) -> None:
    while engine.scheduler.has_requests():
        engine.core.step()
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("admission", ["Hotness", "All"])
def test_host_tier_keeps_answers(start_engine: Callable[..., Engine], admission: str) -> None:
    """With aborts, chunked prefill, loads and promotions."""
    plain = _plain(start_engine)
    engine = start_engine(**_SMALL, **host_tier_arguments(4096))
    counters, guard = Counters(), Guard("promotion", Counters())
    config = HostTierConfig(min_frequency=2, admission=admission)
    manager = install(engine.scheduler, config, guard, counters)
    assert manager is not None
    run = engine.serve(_prompts(1))
    assert guard.on
    assert manager.guard.on
    assert counters.get("promotions_used")
    _same(plain, run)
    assert sum(answer.cached for answer in run.answers.values()) > sum(one.cached for one in plain.answers.values())
    _nothing_left(engine)


@pytest.mark.timeout(300)
def test_disk_keeps_answers(start_engine: Callable[..., Engine], tmp_path: Path) -> None:
    """Little host memory and a disk, with the real worker: blocks from the disk have the content that was written. At
    the end nothing of either is in use."""
    plain = _plain(start_engine)
    below = {"disk_path": str(tmp_path), "disk_bytes_to_use": 64 << 20}
    engine = start_engine(**_SMALL, **host_tier_arguments(150, **below))
    counters, guard = Counters(), Guard("promotion", Counters())
    manager = install(engine.scheduler, HostTierConfig(min_frequency=1), guard, counters)
    assert manager is not None
    named = manager.region.mmap_path  # type: ignore[attr-defined]
    assert not Path(named).exists()
    run = engine.serve(_prompts(1))
    assert manager.disk.guard.on, manager.disk.guard.reason
    assert counters.get("disk_writes")
    assert counters.get("disk_reads")
    _same(plain, run)
    _nothing_left(engine)
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("disk", [False, True])
def test_transfer_parameters_keep_answers(start_engine: Callable[..., Engine], tmp_path: Path, disk: bool) -> None:
    """With the whole plugin. Every other client sends `kv_transfer_params` of any kind."""
    wanted, rng = _prompts(1), random.Random(2)
    plain = _plain(start_engine)
    below = {"disk_path": str(tmp_path), "disk_bytes_to_use": 64 << 20} if disk else {}
    plugin = plugin_arguments({"hostTier": {"minFrequency": 1}})
    engine = start_engine(**_SMALL, **plugin, **host_tier_arguments(150 if disk else 4096, **below))
    sent = rng.sample(SENT, len(SENT)) * 2
    run = engine.serve([replace(one, sent=sent.pop()) if place % 2 else one for place, one in enumerate(wanted)])
    _same(plain, run)
    _nothing_left(engine)
    plumage = engine.scheduler.plumage
    assert {name: guard.reason for name, guard in plumage.guards.items() if not guard.on} == {}
    assert ("disk" in plumage.guards) == disk
    assert plumage.counters.get("disk_reads" if disk else "promotions_used")


def test_wrong_copy_changes_answers(start_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """A control of the test above."""
    prompts = [Prompt(name, chain(0, 6) + chain(9, 1)[:7], 8, step) for name, step in (("a", 0), ("b", 60))]
    crowd = [Prompt(f"c{number}", chain(50 + number, 8), 8, 15 + number) for number in range(6)]
    wanted = start_engine(**_SMALL).serve(prompts).answers["b"].tokens
    monkeypatch.setattr(TorchWorker, "_copy", _wrong(TorchWorker._copy))
    engine = start_engine(**_SMALL, **host_tier_arguments(4096))
    install(engine.scheduler, HostTierConfig(admission="All", promotion="Off"), Guard("p", Counters()), Counters())
    assert engine.serve([*prompts, *crowd]).answers["b"].tokens != wanted


def _wrong(copy: Callable[..., int]) -> Callable[..., int]:
    """The content of host memory is lost during the copy to the device."""

    def copied(self: Any, device: Any, host: Any, store: bool) -> int:
        if not store:
            for one in self._host:
                one.zero_()
        return copy(self, device, host, store)

    return copied


class TestStart:
    def test_too_much_memory_is_refused(self, tiny_model: Path) -> None:
        with pytest.raises(ConfigurationError, match="but this machine has"):
            PretendEngine(tiny_model, blocks=16, **host_tier_arguments(2**50))

    @pytest.mark.parametrize("option", ["store_threshold", "eviction_policy"])
    def test_option_of_vllm_is_refused(self, tiny_model: Path, option: str) -> None:
        with pytest.raises(ConfigurationError, match=f"{option} has no effect here; set the plugin's hostTier"):
            PretendEngine(tiny_model, blocks=16, **host_tier_arguments(16, **{option: 2}))

    @pytest.mark.parametrize("option", ["disk_pth", "disk_bytes", "diskPath"])
    def test_misspelt_disk_option_is_refused(self, tiny_model: Path, option: str) -> None:
        with pytest.raises(ConfigurationError, match=f"no option {option}; of the disk: disk_path, disk_bytes_to_use"):
            PretendEngine(tiny_model, blocks=16, **host_tier_arguments(16, **{option: 2}))

    def test_vllm_scheduler_reads_settings_from_environment(
        self, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ENVIRONMENT, '{"hostTier": {"minFrequency": 3}}')
        engine = PretendEngine(tiny_model, blocks=16, **host_tier_arguments(16))
        manager = engine.scheduler.connector.connector_scheduler.manager
        assert isinstance(manager, HostTierManager)
        assert manager.settings.min_frequency == 3
        for turn in range(3):
            engine.add(f"r{turn}", chain(0, 2), 2)
            engine.finish()
        assert engine.stored_blocks == 2

    def test_promotion_needs_our_spec(self, tiny_model: Path) -> None:
        guard = Guard("promotion", Counters())
        for arguments in ({}, host_tier_arguments(16, stock=True)):
            engine = PretendEngine(tiny_model, blocks=16, **arguments)
            assert install(engine.scheduler, HostTierConfig(), guard, Counters()) is None


class TestTorchWorker:
    """Two groups, one of two tensors; chunks of three blocks. The first block of a job may be inside a chunk."""

    def make(self) -> tuple[TorchWorker, list[torch.Tensor]]:
        torch.manual_seed(0)
        padded = torch.randint(-99, 99, (12, 24), dtype=torch.int8)
        tensors = [torch.randint(-99, 99, (12, 16), dtype=torch.int8), padded[:, :8]]
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors],
            [[CanonicalKVCacheRef(0, 16), CanonicalKVCacheRef(1, 8)], [CanonicalKVCacheRef(1, 8)]],
        )
        return TorchWorker(caches, 3, 5), tensors

    def test_stored_blocks_load_into_other_blocks(self) -> None:
        worker, (first, second) = self.make()
        before = first.clone(), second.clone()
        assert worker.submit_store(1, GPULoadStoreSpec([4, 5, 6, 9], [3, 1], [1, 0]), CPULoadStoreSpec([2, 0, 4]))
        assert worker.submit_load(2, CPULoadStoreSpec([2, 0, 4]), GPULoadStoreSpec([1, 2, 3, 8], [3, 1], [1, 0]))
        worker.wait({1, 2, 77})
        results = sorted(worker.get_finished(), key=lambda result: result.job_id)
        assert [(one.job_id, one.success, one.transfer_size) for one in results] == [(1, True, 80), (2, True, 80)]
        assert torch.equal(first[1:4], before[0][4:7])
        assert torch.equal(second[1:4], before[1][4:7])
        assert torch.equal(second[8], before[1][9])
        assert torch.equal(first[4:], before[0][4:])
        assert not worker.get_finished()
        worker.shutdown()

    def test_wait_returns_after_stalled_copy(self) -> None:
        worker, (first, _) = self.make()
        gate, copy = threading.Event(), worker._copy
        worker._copy = lambda *given: gate.wait() and copy(*given)  # type: ignore[method-assign]
        worker.submit_store(1, GPULoadStoreSpec([4], [1, 0], [0, 0]), CPULoadStoreSpec([0]))
        assert not worker.get_finished()
        threading.Timer(0.05, gate.set).start()
        worker.wait({1})
        assert [one.job_id for one in worker.get_finished()] == [1]
        assert np.array_equal(worker._host[0][0][0].numpy(), first[4].numpy())
        worker.shutdown()

    def test_copy_that_never_ends_is_reported(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("plumage_engine.vllm.offload.host_tier.copy_worker._WAIT_SECONDS", 0.05)
        monkeypatch.setattr("plumage_engine.vllm.offload.host_tier.copy_worker._END_SECONDS", 0.05)
        worker, _ = self.make()
        gate = threading.Event()
        worker._copy = lambda *given: gate.wait(60) and 0  # type: ignore[method-assign]
        worker.submit_store(1, GPULoadStoreSpec([4], [1, 0], [0, 0]), CPULoadStoreSpec([0]))
        with pytest.raises(StateError, match=r"job 1 has not ended within 0\.05 s"):
            worker.wait({1})
        worker.shutdown()
        assert "copies have not ended" in caplog.text
        assert worker._host, "a thread that may still write keeps its memory"
        gate.set()
        worker._thread.join(60)
        assert not worker._thread.is_alive()

    def test_failed_copy_is_reported_as_failed(self) -> None:
        worker, _ = self.make()
        worker.submit_store(1, GPULoadStoreSpec([99], [1, 0], [0, 0]), CPULoadStoreSpec([0]))
        worker.wait({1})
        assert [one.success for one in worker.get_finished()] == [False]
        worker.shutdown()
