"""What the plugin counts, by name and label: read by `/v1/plumage/stats` and by the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from plumage.errors import StateError

__all__ = ["MEANINGS", "Counters"]

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "admissions": "Requests that joined the running batch, resumed ones included",
        "stops": "Steps in which the stop policy held back a request",
        "aged": "Requests admitted after they had waited for their bound, chosen by the policy anyway or not",
        "preemptions": "Running requests that were preempted",
        "tip_loss": "Levels of the shared prefix that the batch lost by admissions",
        "evictions": "Cached blocks that left the device, by policy or reason: duplicate, other (in no "
        "tree), promotion, reset. Not counted: what vLLM itself takes out; without a policy, all but promotion's",
        "host_admissions": "Blocks offered to host memory and taken",
        "host_refusals": "Blocks offered to host memory and refused",
        "promotions": "Blocks copied up from host memory without a request that waits for them",
        "promotions_ahead": "Promoted blocks that a waiting request needed",
        "promotions_used": "Promoted blocks that a request found in the device's cache",
        "promotions_wasted": "Promoted blocks that were evicted before any request asked for them",
        "promotions_abandoned": "Blocks whose promotion was under way when the cache was reset",
        "promotion_rests": "Pauses of promotion because too few promoted blocks were used",
        "disk_writes": "Blocks written from host memory to the disk",
        "disk_reads": "Blocks that a request found on the disk, read back into host memory",
        "disk_refusals": "Blocks that belong on the disk and are colder than all that fills it",
        "disk_misses": "Blocks evicted from host memory before they could be written to the disk",
        "disk_damaged": "Blocks that read differently from the disk than they were written; they count as not found",
        "tables_adopted": "Learned tables of other engines that this engine started with",
        "tables_refused": "Learned tables refused: damaged, or of another model, device or configuration",
        "failures": "Exceptions in the plugin's hooks, by feature; the feature is off from then on",
    }
)
"""Every counter, with its meaning as /metrics tells it."""


class Counters:
    """Counts since the engine's start. Plain additions on vLLM's own threads: one writer, readers take a copy."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, name: str, count: int = 1, label: str = "") -> None:
        """StateError for a name without a meaning in `MEANINGS`."""
        if name not in MEANINGS:
            raise StateError(f"no counter named {name!r}: give it a meaning in MEANINGS first")
        key = name, label
        self._counts[key] = self._counts.get(key, 0) + count

    def get(self, name: str, label: str = "") -> int:
        return self._counts.get((name, label), 0)

    def rows(self) -> Iterator[tuple[str, str, int]]:
        """(name, label, count), sorted."""
        for (name, label), count in sorted(self._counts.items()):
            yield name, label, count

    def told(self) -> dict[str, dict[str, int]]:
        """By name and label, as stats have them."""
        counts: dict[str, dict[str, int]] = {}
        for name, label, count in self.rows():
            counts.setdefault(name, {})[label] = count
        return counts
