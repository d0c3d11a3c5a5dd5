"""What the router counts, in plain integers; the Prometheus form is made only when somebody scrapes.

A client library's counters take locks and look up labels at every step, which the completion path can't afford. Here
an observation is put on a list, and the list is sorted into buckets once a tick.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from plumage import exposition

__all__ = ["SECONDS", "Histogram", "Metrics"]

_PREFIX = "plumage_router_"
_DECISION = (25e-6, 50e-6, 75e-6, 1e-4, 1.5e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05)
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
_ERROR = (-10.0, -5.0, -2.0, -1.0, -0.5, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TOKENS = (-4096, -1024, -512, -256, -128, -64, -16, 0, 16, 64, 128, 256, 512, 1024, 4096)


class Histogram:
    """Cumulative buckets, as Prometheus reads them. `observe(value)` takes one in; call `settle` now and then."""

    __slots__ = ("_fresh", "_reached", "_total", "bounds", "observe")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._reached = [0] * (len(bounds) + 1)  # values up to each bound, and all of them
        self._total = 0.0
        self._fresh: list[float] = []
        self.observe: Callable[[float], None] = self._fresh.append

    def settle(self) -> None:
        """Sorts what was observed into the buckets."""
        fresh = self._fresh
        fresh.sort()
        self._total += sum(fresh)
        for index, bound in enumerate(self.bounds):
            self._reached[index] += bisect_right(fresh, bound)
        self._reached[-1] += len(fresh)
        fresh.clear()

    @property
    def count(self) -> int:
        return self._reached[-1] + len(self._fresh)

    @property
    def reached(self) -> list[int]:
        """Values up to each bound, and last all of them, as of the last `settle`."""
        return list(self._reached)

    @property
    def total(self) -> float:
        return self._total + sum(self._fresh)

    def lines(self, name: str, text: str) -> Iterator[str]:
        """Its family in the text form."""
        self.settle()
        return exposition.histogram(name, text, self.bounds, self._reached, self._total)


class Metrics:
    """All of one router's counters. Errors are ours (told by `code`); `responses` are what clients got, by status."""

    def __init__(self) -> None:
        self.requests = 0
        self.responses: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.not_found: Counter[str] = Counter()
        self.aborted = 0
        self.truncated = 0
        self.usage_missing = 0
        self.background_failures = 0
        self.predicted_hit_tokens = 0.0
        self.actual_hit_tokens = 0.0
        self.prompt_tokens = 0.0
        self.output_tokens = 0
        self.decision = Histogram(_DECISION)
        self.ttft = Histogram(SECONDS)
        self.latency = Histogram(SECONDS)
        self.ttft_error = Histogram(_ERROR)
        self.latency_error = Histogram(_ERROR)
        self.hit_error = Histogram(_TOKENS)

    def settle(self) -> None:
        """Call it each tick: observations wait in lists until then."""
        for _, _, histogram in self._histograms():
            histogram.settle()

    def lines(self) -> Iterator[str]:
        """What is counted here, in Prometheus' text form."""
        for name, text, value in self._single():
            yield from exposition.counter(_PREFIX + name, text, value)
        for name, text, label, values in self._labelled():
            yield from exposition.counters(_PREFIX + name, text, label, dict(sorted(values.items())))
        for name, text, histogram in self._histograms():
            yield from histogram.lines(_PREFIX + name, text)

    def _single(self) -> tuple[tuple[str, str, float], ...]:
        return (
            ("requests", "Completion requests begun.", self.requests),
            ("aborted", "Clients that left early.", self.aborted),
            ("truncated", "Answers cut short by an engine's failure.", self.truncated),
            ("usage_missing", "Answers without cached_tokens.", self.usage_missing),
            ("background_failures", "Background tasks that failed and began again.", self.background_failures),
            ("prompt_tokens", "Prompt tokens as engines counted them.", self.prompt_tokens),
            ("output_tokens", "Answer tokens as engines counted them.", self.output_tokens),
            ("hit_tokens_predicted", "Prompt tokens expected in the cache.", self.predicted_hit_tokens),
            ("hit_tokens_actual", "Prompt tokens that were in the cache.", self.actual_hit_tokens),
        )

    def _labelled(self) -> tuple[tuple[str, str, str, Mapping[str, int]], ...]:
        responses = {str(status): count for status, count in self.responses.items()}
        return (
            ("responses", "Responses by status.", "status", responses),
            ("errors", "Errors the router answered itself.", "code", self.errors),
            ("not_found", "Requests for paths that are not served, by class.", "path", self.not_found),
            ("retries", "Attempts that failed and were followed by another.", "reason", self.retries),
        )

    def _histograms(self) -> tuple[tuple[str, str, Histogram], ...]:
        return (
            ("decision_seconds", "Reading a request and choosing its replica.", self.decision),
            ("ttft_seconds", "Request read to the first body byte, of streams.", self.ttft),
            ("latency_seconds", "Request read to the last body byte.", self.latency),
            ("ttft_error_seconds", "Actual minus predicted TTFT, of streams.", self.ttft_error),
            ("latency_error_seconds", "Actual minus predicted end-to-end latency.", self.latency_error),
            ("hit_error_tokens", "Actual minus predicted hit tokens.", self.hit_error),
        )
