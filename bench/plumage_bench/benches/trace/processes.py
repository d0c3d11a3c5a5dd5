"""The same trace, many independent replays side by side. A replay is a function of the trace and a job."""

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
    """Results by job, in the order of the jobs; `advance(1)` after each. Both must be picklable, the jobs hashable."""
    waiting = list(jobs)
    results = in_parallel(_replayed, [(replay, job) for job in waiting], advance, begin=_begin, given=(trace,))
    return dict(zip(waiting, results, strict=True))


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
