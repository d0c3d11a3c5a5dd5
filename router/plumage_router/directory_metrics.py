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
REASONS: Final = ("new", "epoch", "gap", "digest", "failover", "gone", "malformed", "failed")


def directory_lines(link: DirectoryLink) -> Iterator[str]:
    """Counters; all are there from the start with 0, so that an alert on their increase misses nothing."""
    parts = _parts(link)
    for what, text in _BY_PART:
        yield from _head(f"{what}_total", text)
        for part, counts in parts.items():
            yield f'{_PREFIX}{what}_total{{part="{part}"}} {counts[what]}'
    yield from _head("snapshots_total", "Snapshots of replicas read, by reason.")
    mirror = parts["mirror"]
    found = {name.removeprefix(_SNAPSHOT): count for name, count in mirror.items() if name.startswith(_SNAPSHOT)}
    for reason, count in sorted({**dict.fromkeys(REASONS, 0), **found}.items()):
        yield f'{_PREFIX}snapshots_total{{reason="{reason}"}} {count}'
    for what, part, key, text in (
        (
            "other_model_total",
            "mirror",
            "other_model",
            "Heartbeats of replicas with another model folder, unknown-cache.",
        ),
        ("log_entries_total", "mirror", "entries", "Entries of replicas' logs read."),
        ("changes_total", "mirror", "changes", "Changes of chunks applied to the mirror."),
        ("estimators_adopted_total", "estimators", "adopted", "Replicas begun from what other routers learned."),
        ("hotness_deltas_total", "hotness", "sent", "Access deltas told to the pool."),
    ):
        yield from _head(what, text)
        yield f"{_PREFIX}{what} {parts[part][key]}"


def _parts(link: DirectoryLink) -> dict[str, Counter[str]]:
    none: Counter[str] = Counter()
    work, learning = link.work, link.learning
    return {
        "mirror": link.sync.counts if link.sync is not None else none,
        "work": work.exchange.counts if work is not None else none,
        "estimators": work.learned.counts + learning.counts if work is not None and learning is not None else none,
        "hotness": link.hotness.exchange.counts if link.hotness is not None else none,
    }


def _head(name: str, text: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} counter"
