"""A fake engine with the host tier, and the invariants of its blocks and slots."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plumage.settings.engine_policies import EvictionConfig, HostTierConfig, RecordConfig
from plumage_bench.vllm.pretend import PAGE, PretendEngine, host_tier_arguments
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.eviction.ordered_pool import install as order_evictions
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.host_tier.chunk_hotness import Prior
from plumage_engine.vllm.offload.install import install

__all__ = ["SENT", "Tier", "chain"]

_NO_NUMBERS = (-1, 1.5, True, "0", "x" * 10_000, [0], {"0": 0}, None)
_NO_FILTERS = (0, "STORAGE", {"medium": "CPU"}, [7, None, "CPU"], [{"medium": "TAPE"}], [{"medium": ["CPU"]}], [{}])
SENT: tuple[Mapping[str, Any], ...] = (
    *({name: tokens} for name in ("max_load_tokens", "max_offload_tokens") for tokens in (0, 1, 32, 47, 96, 2**63)),
    {"max_load_tokens": 0, "max_offload_tokens": 0},
    *({"kv_load_tiers": tiers} for tiers in ([], [{"medium": "storage"}], [{"medium": "CPU"}])),
    {"kv_load_tiers": [{"locality": "LOCAL"}, {"medium": "STORAGE", "locality": "REMOTE"}], "max_load_tokens": 64},
    *({"max_load_tokens": wrong, "max_offload_tokens": wrong} for wrong in _NO_NUMBERS),
    *({"kv_load_tiers": wrong} for wrong in _NO_FILTERS),
    {"do_remote_decode": True, "remote_block_ids": "x", "remote_engine_id": [1], "plumage_group": [1]},
    {"do_remote_prefill": True, "remote_prefill_cached_tokens": "many", "remote_port": None},
    {},
)
"""What clients may send as `kv_transfer_params`. vLLM's offloading knows three of them and must ignore the others."""


class Tier:
    """engine: vLLM's parts. manager: of host memory. guard: of promotion. disk: its folder, and the number of chunks
    that it may hold; then call `close`."""

    def __init__(
        self,
        model: Path,
        *,
        blocks: int = 48,
        chunks: int = 40,
        eviction: str | None = None,
        prior: Prior | None = None,
        disk: tuple[Path, int] | None = None,
        seed: int = 0,
        connector: dict[str, Any] | None = None,
        arguments: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.counters = Counters()
        self.guard, self.order_guard = Guard("promotion", self.counters), Guard("eviction", self.counters)
        below = {} if disk is None else {"disk_path": str(disk[0]), "disk_bytes_to_use": disk[1] * PAGE}
        given = {**host_tier_arguments(chunks, **below, **(connector or {})), **(arguments or {})}
        self.engine = PretendEngine(model, blocks=blocks, seed=seed, **given)
        if eviction is not None:
            order_evictions(
                self.engine.scheduler, EvictionConfig(policy=eviction), self.order_guard, self.counters,
                random.Random(seed), lambda: float(self.engine.steps),
            )  # fmt: skip
        # Clocks that follow the size of these few chunks would be 0 after a request or two.
        chosen = HostTierConfig.model_validate(
            {"min_frequency": 2, "record": RecordConfig(aging_interval=100), **settings}
        )
        manager = install(self.engine.scheduler, chosen, self.guard, self.counters, prior=prior, seed=seed)
        assert manager is not None
        self.manager = manager
        self.connector: Any = self.engine.scheduler.connector.connector_scheduler

    @property
    def promoter(self) -> Any:
        """None where promotion is off."""
        return getattr(self.connector, "promoter", None)

    def serve(
        self, name: str, tokens: Sequence[int], answer: int = 2, salt: str | None = None, sent: object = None
    ) -> None:
        """Serves one request from start to end. sent: its `kv_transfer_params`."""
        self.engine.add(name, tokens, answer, salt, sent)
        self.engine.finish()

    @property
    def disk(self) -> Any:
        """The disk tier; None where there is none."""
        return self.manager.disk

    def finish_transfers(self, seconds: float = 120.0) -> None:
        """Waits until all transfers to and from the disk have ended. Its threads are real ones."""
        deadline = time.monotonic() + seconds
        while self.disk.in_transfer:
            assert time.monotonic() < deadline, f"{self.disk.in_transfer} chunks still move after {seconds} s"
            time.sleep(0.002)
            self.connector.manager._process_finished_jobs()

    def close(self) -> None:
        self.engine.close()

    def in_device(self, name: str) -> int:
        """The number of leading blocks of the request's prompt that the device's cache holds."""
        held = 0
        for block in self.engine.requests[name].block_hashes:
            if self.engine.pool.get_cached_block(block, [0]) is None:
                break
            held += 1
        return held

    def check(self) -> None:
        """Every block, and every slot of host memory, is free or held by a request or a promotion."""
        assert self.guard.on, self.guard.reason
        assert self.manager.guard.on, self.manager.guard.reason
        assert self.order_guard.on, self.order_guard.reason
        self._check_blocks()
        self._check_slots()
        if self.disk is not None and self.disk.guard.on:
            self._check_disk(self.disk)

    def check_idle(self) -> None:
        """Checks also that no block or slot is held."""
        self.check()
        assert self.promoter is None or not (self.promoter.pending or self.promoter._names)
        assert not self.connector._jobs
        assert not self.connector._chunks_being_loaded
        assert self.engine.pool.get_num_free_blocks() == self.engine.pool.num_gpu_blocks - 1
        assert all(chunk.ref_cnt == 0 for _, chunk in self.manager.residents.items())

    def _check_blocks(self) -> None:
        pool = self.engine.pool
        free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        assert len(free) == len(set(free)) == pool.get_num_free_blocks()
        holders: dict[int, int] = {}
        for blocks in self.engine.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks.values():
            for block in blocks:
                holders[block.block_id] = holders.get(block.block_id, 0) + 1
        for job in self.promoter._jobs.values() if self.promoter is not None else ():
            for block in job.blocks:
                holders[block.block_id] = holders.get(block.block_id, 0) + 1
        for block in pool.blocks[1:]:
            assert block.ref_cnt == holders.get(block.block_id, 0)
            assert (block.ref_cnt == 0) == (block.block_id in set(free))

    def _check_disk(self, disk: Any) -> None:
        """Every place in the file is free, holds a chunk, or belongs to a transfer. Memory keeps chunks that are being
        moved."""
        coming = [slot for one in disk._writing.values() for slot in one.slots]
        late = [slot for one in disk._io._transfers.values() if one.store and not one.wanted for slot in one.slots]
        places = [*disk._free, *disk._slot_of.values(), *coming, *late, *disk._reserved.values()]
        assert sorted(places) == list(range(disk._slots))
        assert set(disk._order) == set(disk._slot_of)
        chunks = dict(self.manager.residents.items())
        assert all(chunks[key].ref_cnt > 0 for one in disk._writing.values() for key in one.keys)
        assert all(chunks[key].ref_cnt == -1 for one in disk._reading.values() for key in one.keys)
        jobs = {job for job, known in self.connector.manager._jobs.items()}
        assert {*disk._writing, *disk._reading} <= jobs
        alive = set(self.connector._req_status)
        assert set(self.connector.manager._reservations) <= alive

    def _check_slots(self) -> None:
        manager, residents = self.manager, self.manager.residents
        chunks = dict(residents.items())
        slots = [chunk.chunk_id for chunk in chunks.values()] + list(manager._free_list)
        assert sorted(slots) == list(range(manager._num_allocated_chunks))
        assert manager._num_evictable_cache_chunks == sum(chunk.ref_cnt == 0 for chunk in chunks.values())
        assert manager._num_write_pending_chunks == sum(chunk.ref_cnt < 0 for chunk in chunks.values())
        assert {place.key for place in residents._order} == set(residents._places) == set(chunks)
        assert sum(entry.held for entry in residents.newest()) == len(chunks)


def chain(name: int, blocks: int, size: int = 32) -> tuple[int, ...]:
    """Tokens of this many blocks. The same name gives the same tokens, and a longer chain begins with a shorter one."""
    rng = random.Random(name)
    return tuple(rng.randrange(3, 250) for _ in range(blocks * size))
