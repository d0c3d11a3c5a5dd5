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
    ended: Callable[[int, T], None] | None = None,
) -> list[T]:
    """function(*call) for each call; the results are in the order of the calls. As each one ends, `advance(1)` and
    `ended(its index, its result)` are called here. `begin(*given)` is called once in each process. function, calls and
    begin must be picklable. The first error, or an interrupt, ends all of them."""
    # Not fork: the progress bar has a thread, and a fork may copy its locks in the locked state.
    context = multiprocessing.get_context("spawn")
    workers = min(2, os.cpu_count() or 1)
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _begin, (os.getpid(), begin, given)) as pool:
        try:
            futures: list[Future[T]] = [pool.submit(function, *call) for call in calls]
            index_of = {future: index for index, future in enumerate(futures)}
            for done in as_completed(futures):
                result = done.result()
                if ended is not None:
                    ended(index_of[done], result)
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
