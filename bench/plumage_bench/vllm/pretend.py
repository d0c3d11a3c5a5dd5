"""vLLM's real scheduler, block pool and offloading connector over a fake device, without a model or waits.

Each block, and each slot of host memory, has a note of what was written to it. If a request is scheduled over a block
with another note than its own, it would have read a wrong KV cache, and `PretendEngine` raises. A seed chooses when
copies end, as late or as early as vLLM's rules permit. It serves tests of such errors, and benchmarks that count.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plumage_bench.vllm.engine import prepare_environment

__all__ = ["PAGE", "Copy", "PretendEngine", "WrongCacheError", "host_tier_arguments"]

PAGE = 4096
"""Bytes of a block, the unit of vLLM's host memory."""
_SPEC = {"spec_name": "HostTierSpec", "spec_module_path": "plumage_engine.vllm.offload.spec"}


Host = MutableMapping[int, object]
"""By slot, the note of what was written to it."""


class WrongCacheError(AssertionError):
    """A request got a block with the wrong content."""


@dataclass(slots=True)
class Copy:
    """A running transfer. store: from the device to the host. pairs: (device block, host slot). steps: until it ends.
    copied: its bytes have been copied. request: the request that waits for the load, or a promotion's name."""

    store: bool
    pairs: Sequence[tuple[int, int]]
    steps: int
    request: str
    copied: bool = False


class SharedHost(MutableMapping[int, object]):
    """Host memory that is written to a disk and read from it: the numbers of the notes are in the memory itself. rows:
    of it, one for each chunk. per_chunk: blocks of a chunk."""

    def __init__(self, rows: memoryview, per_chunk: int) -> None:
        import numpy as np

        self._words: Any = np.asarray(rows).view(np.int64)
        self._per_chunk = per_chunk
        self._notes: list[object] = [None]

    def __getitem__(self, slot: int) -> object:
        return self._notes[int(self._words[divmod(slot, self._per_chunk)])]

    def __setitem__(self, slot: int, note: object) -> None:
        self._words[divmod(slot, self._per_chunk)] = len(self._notes)
        self._notes.append(note)

    def __delitem__(self, slot: int) -> None:
        self._words[divmod(slot, self._per_chunk)] = 0

    def __len__(self) -> int:
        return len(self._words) * self._per_chunk

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


@dataclass(slots=True)
class _Table:
    blocks: list[int] = field(default_factory=list)


def host_tier_arguments(chunks: int, stock: bool = False, **extra: Any) -> dict[str, Any]:
    """EngineArgs for host memory of this many blocks, with the plugin's spec or vLLM's own. extra: of the connector."""
    from vllm.config import KVTransferConfig

    options = {"cpu_bytes_to_use": chunks * PAGE, **({} if stock else _SPEC), **extra}
    if stock:
        options |= {"spec_name": "CPUOffloadingSpec"}
    transfer = KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=options
    )
    return {"kv_transfer_config": transfer}


class PretendEngine:
    """model: a folder with a configuration that vLLM can read. blocks: of the device, including vLLM's null block.
    slowest: most steps of a copy. arguments: further EngineArgs."""

    def __init__(
        self, model: Path, *, blocks: int, seed: int = 0, slowest: int = 4, block_size: int = 32, **arguments: Any
    ) -> None:
        prepare_environment()
        self.block_size = block_size
        self.scheduler = _make_scheduler(model, blocks, block_size, arguments)
        self.pool: Any = self.scheduler.kv_cache_manager.block_pool
        self.device: list[object] = [None] * blocks
        self.copies: dict[int, Copy] = {}
        self.requests: dict[str, Any] = {}
        self.cached: dict[str, tuple[int, int]] = {}
        self.epoch = 0
        self.promotion_steps: int | None = None
        """Steps of a promotion's copy, if the seed does not choose them. The copy takes effect at its end."""
        self.stored_blocks = self.loaded_blocks = self.promoted_blocks = self.steps = 0
        self.store_copies = 0
        self._slowest = slowest
        connector = getattr(self.scheduler.connector, "connector_scheduler", None)
        self._per_chunk = 1 if connector is None else int(connector.config.blocks_per_chunk)
        region = getattr(getattr(getattr(connector, "manager", None), "memory", None), "region", None)
        self.host: Host = {} if region is None else SharedHost(region.create_kv_memoryview(), self._per_chunk)
        self._rng = random.Random(seed)
        self._tables: dict[str, _Table] = {}
        self._put_off: dict[int, Any] = {}
        self._hasher = _hasher(block_size)

    # -- what a caller does ------------------------------------------------------------------------------------------

    def add(self, name: str, tokens: Sequence[int], answer: int, salt: str | None = None, sent: object = None) -> None:
        """A request arrives. sent: the client's `kv_transfer_params`."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        extra = None if sent is None else {"kv_transfer_params": sent}
        wanted = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True, extra_args=extra)
        request = Request(
            name, list(tokens), wanted, None, arrival_time=0.0, block_hasher=self._hasher, cache_salt=salt
        )
        self.requests[name] = request
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        """The client of the request has disconnected."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset(self, *, running: bool = False, host: bool = True) -> bool:
        """Clear the caches, as after new weights; blocks computed before are wrong from then on. running: preempt the
        running requests. host: clear host memory too."""
        done = bool(self.scheduler.reset_prefix_cache(running, host))
        if done and host:
            self.epoch += 1
        return done

    def step(self) -> Any:
        """One step of the engine. WrongCacheError if a request would have read another content than its own."""
        self.steps += 1
        output = self.scheduler.schedule()
        self._before(output.kv_connector_metadata)
        self._note_cached(output)
        sampled = self._run(output)
        transfers = self._transfers(output.kv_connector_metadata)
        self.scheduler.update_from_output(output, _answer(output, sampled, transfers))
        return output

    def finish(self, steps: int = 100_000) -> None:
        """Step until nothing is left to do. RuntimeError after `steps` steps."""
        for _ in range(steps):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise RuntimeError(f"not done after {steps} steps")

    def close(self) -> None:
        """Release the connector's memory and files. The engine can not be used afterwards."""
        self.host = {}
        self.scheduler.shutdown()

    @property
    def promoting(self) -> int:
        """Blocks that are being copied to the device and that no request waits for."""
        loads = (copy for copy in self.copies.values() if not copy.store)
        return sum(len(copy.pairs) for copy in loads if copy.request not in self.requests)

    # -- the fake device ---------------------------------------------------------------------------------------------

    def _before(self, metadata: Any) -> None:
        """As in vLLM's worker: stores of the step before begin, flushed ones end, then loads begin."""
        if metadata is None:
            return
        flushed = metadata.jobs_to_flush or set()
        stores = dict(metadata.store_jobs)
        self._put_off |= {job: stores.pop(job) for job in list(stores) if job in flushed}
        for number, job in self._put_off.items():
            self._begin(number, job, job.src_spec, job.dst_spec, store=True)
        self._put_off = stores
        for number in flushed:
            if number in self.copies:
                self._move(self.copies[number])
                self.copies[number].steps = 0

    def _begin(self, number: int, job: Any, device: Any, host: Any, *, store: bool) -> None:
        pairs = [
            (int(block), int(host.block_ids[place // self._per_chunk]) * self._per_chunk + place % self._per_chunk)
            for place, block in enumerate(device.block_ids, device.block_indices[0] % self._per_chunk)
        ]
        copy = self.copies[number] = Copy(store, pairs, self._rng.randrange(self._slowest + 1), job.req_id)
        early = self._rng.random() < 0.5
        if self.promotion_steps is not None and not store and job.req_id not in self.requests:
            copy.steps, early = self.promotion_steps, False
        if store:
            self.stored_blocks += len(pairs)
            self.store_copies += 1
        elif job.req_id in self.requests:
            self.loaded_blocks += len(pairs)
        else:
            self.promoted_blocks += len(pairs)
        if early:
            self._move(copy)

    def _move(self, copy: Copy) -> None:
        if copy.copied:
            return
        copy.copied = True
        for block, slot in copy.pairs:
            if copy.store:
                self.host[slot] = self.device[block]
            else:
                self.device[block] = self.host.get(slot)

    def _transfers(self, metadata: Any) -> Any:
        """Start the loads, which begin after the step. Returns the output with the copies that have ended."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
        from vllm.v1.outputs import KVConnectorOutput

        for number, job in metadata.load_jobs.items() if metadata is not None else ():
            self._begin(number, job, job.dst_spec, job.src_spec, store=False)
        finished, received = OffloadingWorkerMetadata(), set()
        for number in list(self.copies):
            copy = self.copies[number]
            if copy.steps:
                copy.steps -= 1
                continue
            self._move(self.copies.pop(number))
            finished.mark_completed(number)
            if not copy.store:
                received.add(copy.request)
        return KVConnectorOutput(
            finished_recving=received or None, kv_connector_worker_meta=finished if finished.completed_jobs else None
        )

    # -- the fake model ----------------------------------------------------------------------------------------------

    def _run(self, output: Any) -> dict[str, list[int]]:
        """Write what each request computes, and sample a token if its prompt is complete."""
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = _Table(list(new.block_ids[0]))
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            table = self._tables[name]
            if name in cached.resumed_req_ids:
                table.blocks = []
            table.blocks += blocks[0] if blocks else []
        begun = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        begun |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        return {name: self._compute(name, begun[name], number) for name, number in output.num_scheduled_tokens.items()}

    def _compute(self, name: str, begun: int, number: int) -> list[int]:
        request, blocks, size = self.requests[name], self._tables[name].blocks, self.block_size
        for index in range(begun // size):
            self._read(name, blocks[index], request.block_hashes[index])
        if begun % size:  # the request's last block, or a loaded block whose last token is computed again
            self._read(name, blocks[begun // size], (name, begun), *request.block_hashes[begun // size :][:1])
        end = begun + number
        for index in range(begun // size, -(-end // size)):
            full = (index + 1) * size <= end
            self.device[blocks[index]] = self.epoch, request.block_hashes[index] if full else (name, end)
        return [self._rng.randrange(3, 250)] if end >= request.num_tokens else []

    def _read(self, name: str, block: int, *wanted: object) -> None:
        if self.device[block] not in [(self.epoch, one) for one in wanted]:
            raise WrongCacheError(f"{name}: block {block} holds {self.device[block]!r}, not {self.epoch}, {wanted!r}")

    def _note_cached(self, output: Any) -> None:
        """For each request, at its first step: prompt tokens found on the device, and those found in host memory."""
        for new in output.scheduled_new_reqs:
            stats = self.requests[new.req_id].prefill_stats
            if stats is not None:
                found = stats.num_local_cached_tokens, stats.num_external_cached_tokens
                self.cached.setdefault(new.req_id, found)


def _hasher(block_size: int) -> Any:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    return get_request_block_hasher(block_size, sha256)


def _make_scheduler(model: Path, blocks: int, block_size: int, arguments: Mapping[str, Any]) -> Any:
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    chosen: dict[str, Any] = {
        "max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 512, "dtype": "bfloat16",
        "enable_prefix_caching": True, "disable_log_stats": True, "num_gpu_blocks_override": blocks,
    }  # fmt: skip
    config = EngineArgs(model=str(model), block_size=block_size, **{**chosen, **arguments}).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    size = PAGE // (2 * block_size * 2)
    layer = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=size, dtype=torch.bfloat16)
    caches = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
    made = config.scheduler_config.get_scheduler_cls()
    structured = StructuredOutputManager(config)
    scheduler: Scheduler = made(
        vllm_config=config, kv_cache_config=caches, structured_output_manager=structured, block_size=block_size,
        hash_block_size=block_size,
    )  # fmt: skip
    return scheduler


def _answer(output: Any, sampled: Mapping[str, list[int]], transfers: Any) -> Any:
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=[sampled[name] for name in names],
        kv_connector_output=transfers,
    )
