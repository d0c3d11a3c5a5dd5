"""A simulated engine on the wall clock: it sleeps for as long as the device would work.

While there is work, each step starts when the one before ended by the cost model. So a late timer does not slow the
device down. After a delay of more than a second the next step starts at the present time. KV events are published when
the step that caused them has ended.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from plumage.blocks.events import BlockEvent
from plumage_engine.kv_events import EventBatch
from plumage_engine.simulator.engine.request import StepReport
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine
from plumage_engine.simulator.events.block_table import BlockTable, Origin
from plumage_engine.simulator.events.publisher import EventPublisher
from plumage_engine.simulator.job import Job
from plumage_engine.simulator.metrics import Metrics

__all__ = ["Runner"]

_MOST_LAG = 1.0


class Runner:
    """Owns the engine, its record of blocks and its publisher. `run` is the loop; handlers call the rest."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        seed: int,
        publisher: EventPublisher,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = BlockTable(settings.block_size)
        self.engine = SimEngine(settings, rng=random.Random(seed), sink=self._note)
        self.publisher = publisher
        self.draining = False
        self.last_step = clock()
        self._metrics = metrics
        self._clock = clock
        self._jobs: dict[object, Job] = {}
        self._resets: list[tuple[asyncio.Future[bool], bool, bool]] = []
        self._events: list[tuple[BlockEvent, Origin | None, int]] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Start a request; the engine's errors pass through and leave nothing behind."""
        self.engine.submit(job.request, job.arrived)
        self._jobs[job.request.request_id] = job
        self._idle.clear()
        self._wake.set()

    def abort(self, job: Job) -> None:
        """The client has disconnected."""
        job.gone = True
        job.changed.set()
        if self._jobs.pop(job.request.request_id, None) is not None:
            self.engine.abort(job.request.request_id, self._clock())
            self._metrics.ended(job, "abort", self._clock())
            self._note_idle()

    async def drained(self, seconds: float) -> bool:
        """Refuse new requests, and wait for those in flight; False if some are left after `seconds`."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def reset_prefix_cache(self, *, running: bool, external: bool) -> bool:
        """See `SimEngine.reset_prefix_cache`; it returns when the current step has ended."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._resets.append((done, running, external))
        self._wake.set()
        return await done

    def _reset(self) -> None:
        for done, running, external in self._resets:
            found = self.engine.reset_prefix_cache(self._clock(), running=running, external=external)
            if not done.done():
                done.set_result(found)
        self._resets.clear()
        self._publish()

    async def run(self) -> None:
        """Step for ever; cancel to stop."""
        start = self._clock()
        while True:
            if self._resets:
                self._reset()
            report = self.engine.step(start)
            if report is None:
                self._wake.clear()
                await self._wake.wait()
                start = self._clock()
                continue
            self._admitted(report, start)
            end = start + report.seconds
            await asyncio.sleep(max(0.0, end - self._clock()))
            self.engine.end_step(end)
            self._publish()
            self._deliver(report)
            now = self.last_step = self._clock()
            start = now if now - end > _MOST_LAG else end

    def _note(self, event: BlockEvent) -> None:
        """Keep an event, with the origin of its blocks, until its step has ended."""
        storing = self.engine.storing
        if storing is None:
            self._events.append((event, None, 0))
            return
        request, first = storing
        job = self._jobs.get(request.request_id)
        self._events.append((event, None if job is None else job.origin, first))

    def _publish(self) -> None:
        if self._events:
            events = [self.table.apply(*entry) for entry in self._events]
            self._events.clear()
            self.publisher.publish(EventBatch(time.time(), events, 0))

    def _admitted(self, report: StepReport, now: float) -> None:
        for request_id in report.admitted:
            job = self._jobs.get(request_id)
            if job is not None:
                self._metrics.queue_time.add(now - job.arrived)

    def _deliver(self, report: StepReport) -> None:
        now = self._clock()
        for request_id in report.tokens:
            job = self._jobs.get(request_id)
            if job is not None:
                self._metrics.token(job, now)
                job.emitted += 1
                job.last_token = now
                if job.stream:
                    job.changed.set()
        for request_id, cached_tokens in report.finished:
            job = self._jobs.pop(request_id, None)
            if job is not None:
                job.cached_tokens = cached_tokens
                job.changed.set()
                self._metrics.ended(job, job.answer.finish_reason, now)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._jobs:
            self._idle.set()
