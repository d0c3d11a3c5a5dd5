"""What came of talking to the directory, for scrapers: version skew, holes, damage, outages.

`part` is what was talked about: mirror (heartbeats, snapshots and logs of replicas), work (in flight, pending owners),
estimators, hotness. A `newer_schema` above 0 says that something there runs a newer version: its word is ignored until
this router is upgraded. An `other_model` that grows: a replica has other templates or another tokenizer than this
router, which therefore does not believe what it holds. `snapshots` by reason tell how often a replica's knowledge had
to be read anew: `gap` and `digest` are lost messages, `failover` another server, `new` an agent's start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from plumage import exposition

if TYPE_CHECKING:
    from plumage_router.directory import DirectoryLink

__all__ = ["directory_lines"]

_PREFIX: Final = "plumage_router_directory_"
_SNAPSHOT: Final = "snapshot_"
_BY_PART: Final = (
    ("newer_schema", "Values of a newer schema, ignored."),
    ("malformed", "Values that could not be read."),
    ("failures", "Calls that the directory's server did not answer."),
)
_SINGLE: Final = (
    ("other_model", "mirror", "other_model", "Heartbeats of replicas with another model folder, unknown-cache."),
    ("log_entries", "mirror", "entries", "Entries of replicas' logs read."),
    ("changes", "mirror", "changes", "Changes of chunks applied to the mirror."),
    ("estimators_adopted", "estimators", "adopted", "Replicas begun from what other routers learned."),
    ("hotness_deltas", "hotness", "sent", "Access deltas told to the pool."),
)
REASONS: Final = ("new", "epoch", "gap", "digest", "failover", "gone", "malformed", "failed")


def directory_lines(link: DirectoryLink) -> Iterator[str]:
    """Counters; all are there from the start with 0, so that an alert on their increase misses nothing."""
    parts = _parts(link)
    for what, text in _BY_PART:
        by_part = {part: counts[what] for part, counts in parts.items()}
        yield from exposition.counters(_PREFIX + what, text, "part", by_part)
    snapshots = _snapshots(parts["mirror"])
    yield from exposition.counters(_PREFIX + "snapshots", "Snapshots of replicas read, by reason.", "reason", snapshots)
    for what, part, key, text in _SINGLE:
        yield from exposition.counter(_PREFIX + what, text, parts[part][key])


def _snapshots(mirror: Counter[str]) -> dict[str, int]:
    found = {name.removeprefix(_SNAPSHOT): count for name, count in mirror.items() if name.startswith(_SNAPSHOT)}
    return dict(sorted({**dict.fromkeys(REASONS, 0), **found}.items()))


def _parts(link: DirectoryLink) -> dict[str, Counter[str]]:
    none: Counter[str] = Counter()
    work, learning = link.work, link.learning
    return {
        "mirror": link.sync.counts if link.sync is not None else none,
        "work": work.exchange.counts if work is not None else none,
        "estimators": work.learned.counts + learning.counts if work is not None and learning is not None else none,
        "hotness": link.hotness.exchange.counts if link.hotness is not None else none,
    }
