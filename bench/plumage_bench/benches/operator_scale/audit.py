"""Which user wrote what, from the API server's audit log: its metrics have no user. Pure, except that it reads the
file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from plumage_operator.kinds import KINDS

__all__ = ["OPERATOR", "POLICY", "Entry", "by_verb", "idle_writes", "read_entries"]

OPERATOR: Final = "system:serviceaccount:plumage-system:plumage-operator"
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_WATCHED: Final = frozenset({"inferencepools", "inferencegateways", *(plural for _, plural in KINDS.values())})

POLICY: Final = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {{level: Metadata, users: ["{OPERATOR}"]}}
- {{level: None, resources: [{{group: "", resources: [pods, events, nodes, endpoints]}}]}}
- {{level: None, resources: [{{group: events.k8s.io}}, {{group: coordination.k8s.io}}, {{group: discovery.k8s.io}}]}}
- {{level: Metadata, verbs: [{", ".join(sorted(_WRITES))}]}}
"""
"""All requests of the operator, and the writes of every user, without those that belong to pods."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request. at: seconds since 1970, when it was answered."""

    at: float
    user: str
    verb: str
    resource: str


class _Object(msgspec.Struct):
    resource: str = ""


class _User(msgspec.Struct):
    username: str = ""


class _Line(msgspec.Struct, rename="camel"):
    stage_timestamp: str
    verb: str
    user: _User
    object_ref: _Object = msgspec.field(default_factory=_Object)


_decode = msgspec.json.Decoder(_Line).decode


def read_entries(log: Path) -> Iterator[Entry]:
    """All entries of a log. Its last line may be incomplete and is left out then."""
    with log.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                event = _decode(line)
                at = datetime.fromisoformat(event.stage_timestamp).timestamp()
                yield Entry(at, event.user.username, event.verb, event.object_ref.resource)


def idle_writes(entries: Iterable[Entry], since: float, until: float) -> Counter[str]:
    """Writes between two times that an idle fleet should not have, by `verb resource`: those of all users to pools and
    their children, and all of the operator's but those to its Lease."""
    found: Counter[str] = Counter()
    for entry in entries:
        if since <= entry.at < until and entry.verb in _WRITES and _counts(entry):
            found[f"{entry.verb} {entry.resource}"] += 1
    return found


def _counts(entry: Entry) -> bool:
    return entry.resource in _WATCHED or (entry.user == OPERATOR and entry.resource != "leases")


def by_verb(entries: Iterable[Entry], since: float, until: float) -> Counter[str]:
    """The operator's requests between two times."""
    return Counter(entry.verb for entry in entries if entry.user == OPERATOR and since <= entry.at < until)
