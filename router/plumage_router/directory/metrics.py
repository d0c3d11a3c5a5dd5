"""The metrics of the link to the directory: version skew, lost messages, malformed values, outages.

`part` is a part of the exchange:
- mirror: heartbeats, snapshots and logs of replicas
- work: work in flight and pending owners
- estimators: what policies learned
- hotness: access counts

`newer_schema` above 0: another process runs a newer version, and its values are ignored until this router is upgraded.
A growing `other_model`: a replica has another template or tokenizer, so its cache counts as unknown.
`snapshots` by reason: `gap` and `digest` are lost messages, `failover` is another server, `new` is an agent's start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from plumage.prometheus import exposition

__all__ = ["directory_lines"]

_PREFIX: Final = "plumage_router_directory_"
_SNAPSHOT: Final = "snapshot_"
_BY_PART: Final = (
    ("newer_schema", "Ignored values of a newer schema."),
    ("malformed", "Values that could not be read."),
    ("failures", "Calls that the directory's server did not answer."),
)
_SINGLE: Final = (
    (
        "other_model",
        "mirror",
        "other_model",
        "Heartbeats of replicas with another model folder; their cache is unknown.",
    ),
    ("log_entries", "mirror", "entries", "Log entries of replicas that were read."),
    ("changes", "mirror", "changes", "Changes of chunks applied to the mirror."),
    ("estimators_adopted", "estimators", "adopted", "Replicas that started from what other routers learned."),
    ("hotness_deltas", "hotness", "sent", "Access deltas sent to the pool."),
)
_REASONS: Final = ("new", "epoch", "gap", "digest", "failover", "gone", "malformed", "failed")


def directory_lines(parts: Mapping[str, Counter[str]]) -> Iterator[str]:
    """The counters in Prometheus' text format. All start with 0, so that an alert on an increase misses nothing.

    parts: the counts of each part of the exchange, by the names above.
    """
    for what, text in _BY_PART:
        by_part = {part: counts[what] for part, counts in parts.items()}
        yield from exposition.counters(_PREFIX + what, text, "part", by_part)
    snapshots = _snapshots(parts["mirror"])
    yield from exposition.counters(
        _PREFIX + "snapshots", "Snapshots of replicas that were read, by reason.", "reason", snapshots
    )
    for what, part, key, text in _SINGLE:
        yield from exposition.counter(_PREFIX + what, text, parts[part][key])


def _snapshots(mirror: Counter[str]) -> dict[str, int]:
    found = {name.removeprefix(_SNAPSHOT): count for name, count in mirror.items() if name.startswith(_SNAPSHOT)}
    return dict(sorted({**dict.fromkeys(_REASONS, 0), **found}.items()))
