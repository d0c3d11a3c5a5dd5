"""The operator's own metrics, for a scraper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from plumage.prometheus.exposition import counter, counters, gauge, gauges_by, page
from plumage.prometheus.histogram import Histogram

__all__ = ["ConditionKey", "Metrics"]

# Seconds. A reconcile may take 120; a lower maximum would hide how slow the slowest are.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_REFUSALS = "Writes that the API server refused, by kind of object; a status counts for its pool or gateway."

_CONDITION = "1 for the present status and reason of each condition of a pool or gateway."
_CONDITION_LABELS = ("kind", "object_namespace", "name", "condition", "status", "reason")
"""A scraper puts the operator's own namespace into the label `namespace`."""

ConditionKey = tuple[str, str, str, str, str, str]
"""Kind, namespace and name of a pool or gateway; type, status and reason of its condition."""

_EXPIRY = "When the certificate of the external metrics server expires, in seconds since 1970."


class Metrics:
    """Counts since the start of this process."""

    def __init__(self) -> None:
        self.reconciles = 0
        self.errors: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.events = 0
        self.leading = False
        self.certificate_expires: float | None = None
        self._seconds = Histogram(_BOUNDS)

    def observe(self, seconds: float) -> None:
        """Counts a reconcile. seconds: how long it took."""
        self.reconciles += 1
        self._seconds.add(seconds)

    def page(self, *, pools: int, waiting: int, oldest: float, conditions: Iterable[ConditionKey] = ()) -> str:
        """The text of `/metrics`. oldest: seconds that the longest overdue key has waited."""
        return page(
            counter("plumage_operator_watch_events", "Changes that the watches reported.", self.events),
            counter("plumage_operator_reconciles", "Reconciles of a pool or gateway.", self.reconciles),
            counters("plumage_operator_errors", "Reconciles that failed, by reason.", "reason", self.errors),
            counters("plumage_operator_actions", "Actions performed, by kind.", "action", self.actions),
            counters("plumage_operator_refusals", _REFUSALS, "kind", self.refusals),
            self._seconds.lines("plumage_operator_reconcile_seconds", "Duration of a reconcile."),
            gauge("plumage_operator_pools", "Pools in the cache.", pools),
            gauges_by("plumage_operator_condition", _CONDITION, _CONDITION_LABELS, dict.fromkeys(conditions, 1)),
            gauge("plumage_operator_queue_length", "Pools and gateways that wait for a reconcile.", waiting),
            gauge("plumage_operator_queue_oldest_seconds", "How long the next one in the queue is overdue.", oldest),
            gauge(
                "plumage_operator_leading",
                "1 for the active operator, 0 for one that waits for the Lease.",
                self.leading,
            ),
            self._expiry(),
        )

    def _expiry(self) -> Iterator[str]:
        """Empty where no certificate is served: a zero would look like a certificate that expired long ago."""
        if self.certificate_expires is not None:
            name = "plumage_operator_external_metrics_certificate_expiry_timestamp_seconds"
            yield from gauge(name, _EXPIRY, self.certificate_expires)
