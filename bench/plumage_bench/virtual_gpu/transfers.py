"""The offloading connector's jobs on the modelled link: what vLLM's worker does, without the bytes.

As in vLLM's worker, a store starts at the beginning of the step after the one that ordered it. A step waits for jobs to
be flushed, because their blocks will be written again. The next output reports finished copies. A load for which no
request waits, a promotion, is reported only as a finished job.
"""

from __future__ import annotations

from typing import Final

from plumage.errors import StateError
from plumage_bench.virtual_gpu.clock import Clock
from plumage_bench.virtual_gpu.compat.executor import (
    KVConnectorOutput,
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from plumage_bench.virtual_gpu.link import Copy, Link

__all__ = ["PROMOTION", "Transfers"]

PROMOTION: Final = "plumage:promotion"
"""The request id of a load for which no request waits. vLLM has no request with this id."""


class Transfers:
    """block_bytes: of one KV block of the modelled device, and so of a copy of it."""

    def __init__(self, link: Link, clock: Clock, block_bytes: int) -> None:
        self.link = link
        self._clock = clock
        self._block_bytes = block_bytes
        self._put_off: dict[int, TransferJob] = {}  # stores
        self._loads: dict[int, str] = {}  # job → request

    def order(self, metadata: object) -> None:
        """Called at the beginning of a step. StateError for a connector with unknown jobs."""
        if not isinstance(metadata, OffloadingConnectorMetadata):
            raise StateError(
                f"the virtual GPU can't do what {type(metadata).__name__} asks for: it knows the OffloadingConnector's "
                "jobs only; name that connector, or none, in --kv-transfer-config"
            )
        flushed = metadata.jobs_to_flush or ()
        stores = dict(metadata.store_jobs)
        for job in flushed:
            if job in stores:
                self._put_off[job] = stores.pop(job)
        for job, store in self._put_off.items():
            self._start(job, store, down=True)
        self._put_off = stores
        self._clock.wait_until(self.link.last_due(flushed))
        for job, load in metadata.load_jobs.items():
            self._loads[job] = load.req_id
            self._start(job, load, down=False)

    def take_output(self) -> KVConnectorOutput:
        """The finished transfers, for the output of a step."""
        report, received = OffloadingWorkerMetadata(), set[str]()
        for copy in self.link.done(self._clock.now()):
            self._note(copy, report)
            request = self._loads.pop(copy.key, PROMOTION)
            if request != PROMOTION:
                received.add(request)
        return KVConnectorOutput(
            finished_recving=received or None, kv_connector_worker_meta=report if report.completed_jobs else None
        )

    def _start(self, job: int, transfer: TransferJob, *, down: bool) -> None:
        device_side = transfer.src_spec if down else transfer.dst_spec
        size = len(device_side.block_ids) * self._block_bytes
        self.link.start(job, size, self._clock.now(), down=down)

    @staticmethod
    def _note(copy: Copy, report: OffloadingWorkerMetadata) -> None:
        report.mark_completed(copy.key)
        stats = report.transfer_stats
        (stats.store if copy.down else stats.load).record(copy.size, copy.seconds)
