"""The router's counters, as plain integers. The Prometheus text is made only when a scraper asks.

The counters of a client library take locks and look up labels at every step, which the completion path cannot afford.
Here an observation is appended to a list, and the list is sorted into buckets once a tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from plumage.prometheus import exposition
from plumage.prometheus.histogram import Histogram

__all__ = ["SECONDS", "BufferedHistogram", "Metrics"]

_PREFIX = "plumage_router_"
_DECISION = (25e-6, 50e-6, 75e-6, 1e-4, 1.5e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05)
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
_ERROR = (-10.0, -5.0, -2.0, -1.0, -0.5, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TOKENS = (-4096, -1024, -512, -256, -128, -64, -16, 0, 16, 64, 128, 256, 512, 1024, 4096)


class BufferedHistogram(Histogram):
    """`observe(value)` appends to a list; `flush`, once a tick, sorts the list's values into the buckets.

    `cumulative` is as of the last flush; count and sum are of all values.
    """

    __slots__ = ("_pending", "observe")

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__(bounds)
        self._pending: list[float] = []
        self.observe: Callable[[float], None] = self._pending.append

    def flush(self) -> None:
        self.add_all(self._pending)
        self._pending.clear()

    @property
    def count(self) -> int:
        return super().count + len(self._pending)

    @property
    def sum(self) -> float:
        return super().sum + sum(self._pending)

    def lines(self, name: str, text: str) -> Iterator[str]:
        self.flush()
        return super().lines(name, text)


class Metrics:
    """The counters of one router. `errors`: the router's own, by code. `responses`: what clients got, by status."""

    def __init__(self) -> None:
        self.requests = 0
        self.responses: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.not_found: Counter[str] = Counter()
        self.aborted = 0
        self.truncated = 0
        self.usage_missing = 0
        self.sorted_tools = 0
        self.background_failures = 0
        self.predicted_hit_tokens = 0.0
        self.actual_hit_tokens = 0.0
        self.prompt_tokens = 0.0
        self.output_tokens = 0
        self.decision = BufferedHistogram(_DECISION)
        self.ttft = BufferedHistogram(SECONDS)
        self.latency = BufferedHistogram(SECONDS)
        self.ttft_error = BufferedHistogram(_ERROR)
        self.latency_error = BufferedHistogram(_ERROR)
        self.hit_error = BufferedHistogram(_TOKENS)

    def flush(self) -> None:
        """Call with each tick: observations are pending until then."""
        for _, _, histogram in self._histograms():
            histogram.flush()

    def lines(self) -> Iterator[str]:
        """All families in Prometheus' text format."""
        for name, text, value in self._single():
            yield from exposition.counter(_PREFIX + name, text, value)
        for name, text, label, values in self._labelled():
            yield from exposition.counters(_PREFIX + name, text, label, dict(sorted(values.items())))
        for name, text, histogram in self._histograms():
            yield from histogram.lines(_PREFIX + name, text)

    def _single(self) -> tuple[tuple[str, str, float], ...]:
        return (
            ("requests", "Completion requests received.", self.requests),
            ("aborted", "Requests whose client left early.", self.aborted),
            ("truncated", "Answers cut short by an engine's failure.", self.truncated),
            ("usage_missing", "Answers without cached_tokens.", self.usage_missing),
            ("sorted_tools", "Requests whose tools the router put into another order.", self.sorted_tools),
            ("background_failures", "Failures of background tasks, which restart.", self.background_failures),
            ("prompt_tokens", "Prompt tokens as engines counted them.", self.prompt_tokens),
            ("output_tokens", "Answer tokens as engines counted them.", self.output_tokens),
            ("hit_tokens_predicted", "Prompt tokens expected in the cache.", self.predicted_hit_tokens),
            ("hit_tokens_actual", "Prompt tokens found in the cache.", self.actual_hit_tokens),
        )

    def _labelled(self) -> tuple[tuple[str, str, str, Mapping[str, int]], ...]:
        responses = {str(status): count for status, count in self.responses.items()}
        return (
            ("responses", "Responses by status.", "status", responses),
            ("errors", "Errors that the router itself answered, by code.", "code", self.errors),
            ("not_found", "Requests for paths that are not served, by path class.", "path", self.not_found),
            ("retries", "Failed attempts that were followed by another, by reason.", "reason", self.retries),
        )

    def _histograms(self) -> tuple[tuple[str, str, BufferedHistogram], ...]:
        return (
            ("decision_seconds", "Time to read a request and choose its replica.", self.decision),
            ("ttft_seconds", "Time from a received request to its first body byte, of streams.", self.ttft),
            ("latency_seconds", "Time from a received request to its last body byte.", self.latency),
            ("ttft_error_seconds", "Actual minus predicted TTFT, of streams.", self.ttft_error),
            ("latency_error_seconds", "Actual minus predicted end-to-end latency.", self.latency_error),
            ("hit_error_tokens", "Actual minus predicted hit tokens.", self.hit_error),
        )
