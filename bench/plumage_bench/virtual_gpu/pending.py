"""An output that is due later, as the future for which vLLM's engine core waits.

No thread sleeps for it: the caller of `result` waits, on the clock. So a virtual clock works as well as the machine's,
and with asynchronous scheduling the next step is scheduled while this one runs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from plumage_bench.virtual_gpu.clock import Clock

__all__ = ["Pending", "ready"]


class Pending(Future[Any]):
    """Done at `due`. `make` is called once for the result, at that time."""

    def __init__(self, clock: Clock, due: float, make: Callable[[], Any]) -> None:
        super().__init__()
        self._clock = clock
        self._due = due
        self._make = make

    def done(self) -> bool:
        return super().done() or self._clock.now() >= self._due

    def result(self, timeout: float | None = None) -> Any:
        """`timeout` is not used, since a modelled step always ends."""
        if not super().done():
            self._clock.wait_until(self._due)
            self.set_result(self._make())
        return super().result()


def ready(result: Any) -> Future[Any]:
    """A future that is done."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future
