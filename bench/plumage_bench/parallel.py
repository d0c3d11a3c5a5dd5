"""Independent runs in two processes: the smallest machine that we measure on has two cores.

The processes end with the benchmark in every case. Otherwise they would wait for work for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from plumage_cli.local.processes.launch import bind_to_parent

__all__ = ["in_parallel"]

T = TypeVar("T")


def in_parallel(
    function: Callable[..., T],
    calls: Sequence[tuple[Any, ...]],
    advance: Callable[[int], None],
    begin: Callable[..., None] | None = None,
    given: tuple[Any, ...] = (),
) -> list[T]:
    """function(*call) for each call; the results are in the order of the calls. `advance(1)` is called as each one
    ends, `begin(*given)` once in each process. All of them must be picklable. The first error, or an interrupt, ends
    all of them."""
    # Not fork: the progress bar has a thread, and a fork may copy its locks in the locked state.
    context = multiprocessing.get_context("spawn")
    workers = min(2, os.cpu_count() or 1)
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _begin, (os.getpid(), begin, given)) as pool:
        try:
            futures: list[Future[T]] = [pool.submit(function, *call) for call in calls]
            for done in as_completed(futures):
                done.result()
                advance(1)
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()  # the pool then cancels the remaining calls
            raise
        return [future.result() for future in futures]


def _begin(parent: int, begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    bind_to_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent handles it
    if begin is not None:
        begin(*given)
