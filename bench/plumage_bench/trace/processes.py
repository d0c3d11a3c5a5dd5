"""The same trace, many independent replays: two processes share them. A replay is a function of the trace and a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from plumage_bench.trace.mooncake import TracedRequest

__all__ = ["WORKERS", "Trace", "replay_all"]

WORKERS = 2

Trace = Sequence[TracedRequest]
Job = TypeVar("Job")
Result = TypeVar("Result")

_trace: Trace = ()


def replay_all(
    replay: Callable[[Trace, Job], Result], trace: Trace, jobs: Iterable[Job], advance: Callable[[int], None]
) -> dict[Job, Result]:
    """Results by job, in the order of the jobs; `advance(1)` after each. Both must be picklable, the jobs hashable."""
    waiting = list(jobs)
    # Started fresh, not forked: the progress bar runs a thread, whose locks a fork would copy as they stand.
    with ProcessPoolExecutor(WORKERS, get_context("spawn"), _begin, (trace,)) as pool:
        running = {pool.submit(_replayed, replay, job): job for job in waiting}
        done = {}
        for future in as_completed(running):
            done[running[future]] = future.result()
            advance(1)
    return {job: done[job] for job in waiting}


def _begin(trace: Trace) -> None:
    """Keep the trace, and send what C libraries print to nowhere: libCacheSim's GLCache greets each cache it makes."""
    global _trace  # a process of the pool has nowhere else to keep what all its jobs share
    _trace = trace
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for printed in (1, 2):
        os.dup2(nowhere, printed)
    os.close(nowhere)


def _replayed(replay: Callable[[Trace, Job], Result], job: Job) -> Result:
    return replay(_trace, job)
