"""The runs of a routing benchmark: many, independent, each of one contender and one seed.

A full benchmark takes hours. The runs whose result is a number are saved as they end, and `resume=1` uses them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from plumage_bench.commit import measured_commit
from plumage_bench.finished import Finished
from plumage_bench.harness import Context
from plumage_bench.parallel import in_parallel
from plumage_bench.routing.contenders import Contender

__all__ = ["Call", "Runs"]

T = TypeVar("T")
Call = tuple[Any, ...]


class Runs:
    """ConfigurationError with `resume=1` if the saved results are of another commit or size of the benchmark."""

    def __init__(self, context: Context) -> None:
        made_by = {"commit": measured_commit(), "quick": context.quick}
        path = context.out / f"{context.name}.done.json"
        self._context, self._finished = context, Finished(path, made_by, context.switch("resume"))

    def all(self, title: str, function: Callable[..., T], calls: Sequence[Call]) -> list[T]:
        """function(*call) of each call, in the order of the calls."""
        with self._context.progress(title, len(calls)) as advance:
            return in_parallel(function, calls, advance)

    def numbers(self, title: str, function: Callable[..., float], calls: Sequence[Call]) -> list[float]:
        """The same for a function whose result is a number. Runs only the calls that have no saved result."""
        names = [_name(function, call) for call in calls]
        missing = [index for index, name in enumerate(names) if self._finished.get(name) is None]

        def save(index: int, result: float) -> None:
            self._finished.add(names[missing[index]], result)

        with self._context.progress(title, len(calls)) as advance:
            advance(len(calls) - len(missing))
            in_parallel(function, [calls[index] for index in missing], advance, ended=save)
        return [self._finished.get(name) for name in names]


def _name(function: Callable[..., float], call: Call) -> str:
    words = (one.label if isinstance(one, Contender) else repr(one) for one in call)
    return f"{function.__name__}: {'; '.join(words)}"
