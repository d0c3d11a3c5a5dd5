"""Many independent replays of the same trace in parallel. A replay is a function of the trace and a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from plumage_bench.benches.trace.mooncake import TracedRequest
from plumage_bench.parallel import in_parallel

__all__ = ["Trace", "replay_all"]

Trace = Sequence[TracedRequest]
Job = TypeVar("Job")
Result = TypeVar("Result")

_trace: Trace = ()


def replay_all(
    replay: Callable[[Trace, Job], Result], trace: Trace, jobs: Iterable[Job], advance: Callable[[int], None]
) -> dict[Job, Result]:
    """Results by job, in the order of the jobs. Calls `advance(1)` after each. Trace and jobs must be picklable, jobs
    also hashable."""
    waiting = list(jobs)
    results = in_parallel(_replayed, [(replay, job) for job in waiting], advance, begin=_begin, given=(trace,))
    return dict(zip(waiting, results, strict=True))


def _begin(trace: Trace) -> None:
    """Stores the trace, and discards the output of C libraries: libCacheSim's GLCache prints a line for each cache."""
    global _trace  # a global: a pool's process has no other place for data of all its jobs
    _trace = trace
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for printed in (1, 2):
        os.dup2(nowhere, printed)
    os.close(nowhere)


def _replayed(replay: Callable[[Trace, Job], Result], job: Job) -> Result:
    return replay(_trace, job)
