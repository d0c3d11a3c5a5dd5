"""Runs that do not depend on each other, on two processes: what the smallest machine we measure on has."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

__all__ = ["in_parallel"]

T = TypeVar("T")


def in_parallel(
    function: Callable[..., T],
    calls: Sequence[tuple[Any, ...]],
    advance: Callable[[int], None],
    begin: Callable[..., None] | None = None,
    given: tuple[Any, ...] = (),
) -> list[T]:
    """function(*call) for each call, results in the order of the calls. `advance(1)` as each one ends; `begin(*given)`
    once in each process. All of them must be picklable."""
    # Not fork: the progress bar has a thread, and a forked thread's locks may be held for ever.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), context, begin, given) as pool:
        futures: list[Future[T]] = [pool.submit(function, *call) for call in calls]
        for _ in as_completed(futures):
            advance(1)
        return [future.result() for future in futures]
