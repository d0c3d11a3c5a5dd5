"""Copies chunks where there is no GPU: plain torch copies in a thread of its own.

vLLM's own worker needs a CUDA or XPU device and is used there. Jobs run in the order of their submission, as in vLLM's
streams per direction; a job is awaited by its event.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plumage.errors import StateError
from plumage_engine.vllm.compat.kv_offload import CanonicalKVCaches, OffloadingWorker, TransferResult

if TYPE_CHECKING:
    from plumage_engine.vllm.compat.kv_tiering import SharedOffloadRegion

__all__ = ["TorchWorker"]

_log = logging.getLogger("vllm.plumage")
_WAIT_SECONDS = 300.0
"""The copies of one step take a fraction of a second; on a machine that swaps or is overcommitted, far longer."""
_END_SECONDS = 60.0
_Rows = tuple[torch.Tensor, torch.Tensor]


class TorchWorker(OffloadingWorker):
    """caches: the device's KV, as rows of bytes a block.
    blocks_per_chunk, chunks: of host memory, which consists of chunks of rows.
    region: memory that other processes map too, used as host memory; the worker releases it at its end.
    """

    def __init__(
        self,
        caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        chunks: int,
        region: SharedOffloadRegion | None = None,
    ) -> None:
        self._per_chunk = blocks_per_chunk
        self._region = region
        self._device = [one.tensor.view(torch.int8) for one in caches.tensors]
        self._host = [
            torch.empty((chunks, blocks_per_chunk, width), dtype=torch.int8, device="cpu")
            if region is None
            else region.create_next_worker_view(blocks_per_chunk * width).unflatten(1, (blocks_per_chunk, width))
            for width in (one.shape[1] for one in self._device)
        ]
        self._groups = [sorted({ref.tensor_idx for ref in refs}) for refs in caches.group_data_refs]
        self._jobs: queue.SimpleQueue[tuple[int, Any, Any, bool] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[TransferResult] = queue.SimpleQueue()
        self._ended: dict[int, threading.Event] = {}
        self._thread = threading.Thread(target=self._work, name="plumage-host-tier", daemon=True)
        self._thread.start()

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Device to host."""
        return self._submit(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        """Host to device. `expedited`: a hint of 0.33; here all jobs share one queue."""
        return self._submit(job_id, dst_spec, src_spec, False)

    def get_finished(self) -> list[TransferResult]:
        """Jobs that ended since the last call."""
        ended: list[TransferResult] = []
        while True:
            try:
                result = self._done.get_nowait()
            except queue.Empty:
                return ended
            self._ended.pop(result.job_id, None)
            ended.append(result)

    def wait(self, job_ids: set[int]) -> None:
        """Wait until these jobs have ended; unknown jobs have ended.

        StateError, which ends the engine, after minutes: the caller would continue with blocks that are still copied.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        for job in job_ids:
            ended = self._ended.get(job)
            if ended is not None and not ended.wait(max(0.0, deadline - time.monotonic())):
                raise StateError(
                    f"host tier: job {job} has not ended within {_WAIT_SECONDS:g} s: the thread that copies hangs or "
                    "is starved. Check for swapping and for other load on this machine's memory; cpu_bytes_to_use of "
                    "--kv-transfer-config sets the tier's size"
                )

    def shutdown(self) -> None:
        """Run the submitted jobs and end. A copy that hangs is left until the process ends, with its memory."""
        self._jobs.put(None)
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            _log.error(
                "plumage: the host tier's copies have not ended within %g s; its memory stays until this process ends, "
                "which must be killed if it hangs", _END_SECONDS,
            )  # fmt: skip
            return
        self._host.clear()
        if self._region is not None:
            self._region.cleanup()

    def _submit(self, job: int, device: Any, host: Any, store: bool) -> bool:
        self._ended[job] = threading.Event()
        self._jobs.put((job, device, host, store))
        return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            number, device, host, store = job
            ended = self._ended[number]
            started = time.perf_counter()
            try:
                size, success = self._copy(device, host, store), True
            except Exception:  # vLLM ends the engine when a copy failed: a partial copy must not be served
                size, success = 0, False
            self._done.put(TransferResult(number, success, size, time.perf_counter() - started))
            ended.set()

    def _copy(self, device: Any, host: Any, store: bool) -> int:
        """Bytes copied."""
        size = 0
        for group, blocks, rows in self._pairs(device, host):
            for place in self._groups[group]:
                ours, theirs = self._host[place], self._device[place]
                if store:
                    ours[rows] = theirs.index_select(0, blocks)
                else:
                    theirs.index_copy_(0, blocks, ours[rows])
                size += len(blocks) * ours.shape[2]
        return size

    def _pairs(self, device: Any, host: Any) -> Iterator[tuple[int, torch.Tensor, _Rows]]:
        """Yields by KV group the device's blocks and the host's chunks and rows. A group's first block may lie within a
        chunk.
        """
        block = chunk = 0
        for group, (blocks, index) in enumerate(zip(device.group_sizes, device.block_indices, strict=True)):
            if not blocks:
                continue
            places = index % self._per_chunk + np.arange(blocks)
            chunks = host.block_ids[chunk : chunk + places[-1] // self._per_chunk + 1].astype(np.int64)
            rows = torch.from_numpy(chunks[places // self._per_chunk]), torch.from_numpy(places % self._per_chunk)
            ours = device.block_ids[block : block + blocks].astype(np.int64)
            yield group, torch.from_numpy(ours), rows
            block += blocks
            chunk += len(chunks)
