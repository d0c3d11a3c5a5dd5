"""The plugin's counters, by name and label: `/v1/plumage/stats` and /metrics report them.

A new counter needs its meaning in `MEANINGS`; `routes.plugin_metrics` then exports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from plumage.errors import StateError

__all__ = ["MEANINGS", "Counters"]

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "admissions": "Requests that joined the running batch, resumed ones included",
        "stops": "Steps in which the stop policy held back a request",
        "aged": "Requests admitted after they had waited for the ageing bound, whether or not the policy chose them",
        "preemptions": "Running requests that were preempted",
        "tip_loss": "Levels of the shared prefix that the batch lost by admissions",
        "evictions": "Cached blocks evicted from the device, by policy or reason: duplicate, other (in no "
        "tree), promotion, reset. vLLM's own removals are not counted; without a policy only promotion's are",
        "host_admissions": "Blocks offered to host memory and admitted",
        "host_refusals": "Blocks offered to host memory and refused",
        "host_returns": "Blocks that a request used again, of those copied after one use; only without minFrequency",
        "host_wasted": "Blocks that left host memory unused, of those copied after one use; only without minFrequency",
        "promotions": "Blocks copied from host memory to the device before a request needed them",
        "promotions_ahead": "Promoted blocks that a waiting request needed",
        "promotions_used": "Promoted blocks that a request found in the device's cache",
        "promotions_wasted": "Promoted blocks that were evicted before any request asked for them",
        "promotions_abandoned": "Blocks whose promotion was in progress when the cache was reset",
        "promotion_rests": "Pauses of promotion because too few promoted blocks were used",
        "disk_writes": "Blocks written from host memory to the disk",
        "disk_reads": "Blocks that a request found on the disk, read back into host memory",
        "disk_refusals": "Blocks refused by a full disk because they are colder than all its blocks",
        "disk_misses": "Blocks evicted from host memory before they could be written to the disk",
        "disk_damaged": "Blocks whose checksum was wrong when they were read from the disk; they count as not found",
        "tables_adopted": "Learned tables of other engines that this engine merged into its own",
        "tables_refused": "Learned tables refused: damaged, or of another model, device or configuration",
        "failures": "Exceptions in the plugin's hooks, by feature; the feature is off from then on",
    }
)
"""Every counter with its help text in /metrics."""


class Counters:
    """Counts since the engine's start. vLLM's scheduler thread alone writes; readers take a copy."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, name: str, count: int = 1, label: str = "") -> None:
        """Add `count`. StateError for a name without a meaning in `MEANINGS`."""
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

    def by_name(self) -> dict[str, dict[str, int]]:
        """The counts by name and label, as stats report them."""
        counts: dict[str, dict[str, int]] = {}
        for name, label, count in self.rows():
            counts.setdefault(name, {})[label] = count
        return counts
