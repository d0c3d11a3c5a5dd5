"""The data on the directory server: keys, packed forms, versions and times to live. Readers and writers share it.

| key (tag in braces, so that a Cluster spreads replicas)  | form                                           | TTL   |
|----------------------------------------------------------|------------------------------------------------|-------|
| `plumage:v1:{pool/replica}:epoch`                        | counter, INCR at each start of the writer      | 1 day |
| `plumage:v1:{pool/replica}:beat`                         | hash: registration and heartbeat (`Beat`)      | 10 s  |
| `plumage:v1:{pool/replica}:EPOCH:snap`                   | hash: bucket number → packed bucket            | 5 min |
| `plumage:v1:{pool/replica}:EPOCH:log`                    | stream: id `SEQ-0`, one entry per engine step  | 5 min |
| `plumage:v1:{pool}:work`                                 | stream: what each router has in flight         | 60 s  |
| `plumage:v1:{pool}:estimators`                           | hash: router → learned state (`SharedHash`)    | 1 day |
| `plumage:v1:{pool}:hotness`                              | stream: uses of prefixes, a delta a second     | 10 min|
| `plumage:v1:{pool}:hotness:view`                         | string: the sum up to an entry of that stream  | 10 min|
| `plumage:v1:{pool}:hotness:lock`                         | lock of the participant that stores the sum    | 1 min |
| `plumage:v1:{pool}:tables:FINGERPRINT`                   | hash: replica → learned FEATHER tables         | 7 days|
| `plumage:v1:{pool}:quota:TENANT:LIMIT:WINDOW`            | hash: router → what it counted (`QuotaShare`)  | 2 days|
| `plumage:v1:{pool}:quota:routers`                        | hash: the routers that count                   | 60 s  |

- A *record* is 12 bytes, little endian: the chunk (u64), then operation (4 bits), tier (4) and cumulative tokens (24)
  in a u32. Snapshot buckets and log entries hold the same records.
- A bucket holds the chunks whose highest bits are its number. It starts with the sequence number that it is valid at,
  so a snapshot can be rewritten bucket by bucket. A log entry applies to a bucket only if the entry's number is larger.
- An epoch is `COUNT.NONCE`: the counter alone would repeat itself on a server that came back empty. Epochs are compared
  for equality only. They are part of the keys, so that a superseded writer can't write to the log of its successor.
- Every value carries the schema's version. A value of a newer version is ignored and counted. Within a version, fields
  may be added and removed: a reader ignores unknown fields and has a default for each optional one.
- No prompt text and no token id: chunks are keyed hashes, the rest are counts and measurements.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from plumage.errors import ConfigurationError, PlumageError

__all__ = [
    "BEAT_TTL", "BUCKETS", "BUCKET_SHIFT", "DATA_TTL", "DIGEST_MASK", "EPOCH_TTL", "ESTIMATORS_TTL",
    "HOTNESS_TTL", "MAX_TOKENS", "RECORD", "SCHEMA_VERSION", "TABLES_TTL", "WORK_TTL", "Beat", "Change", "Keys", "Load",
    "NewerSchemaError", "Op", "PoolKeys", "SchemaError", "State", "Tier", "are_apart", "check_version", "engine_name",
    "pack_bucket", "pack_entry", "read_entry", "sequence", "unpack_bucket", "unpack_records",
]  # fmt: skip

SCHEMA_VERSION = 1
PREFIX = f"plumage:v{SCHEMA_VERSION}"
BUCKETS = 64
BUCKET_SHIFT = 58  # 64-bit chunk >> 58 = its bucket
MAX_TOKENS = (1 << 24) - 1
DIGEST_MASK = (1 << 64) - 1

BEAT_TTL = 10.0  # seconds without a heartbeat until a replica's cache is unknown
DATA_TTL = 300  # bounds what a dead writer leaves behind; readers never rely on it
EPOCH_TTL = 86_400
WORK_TTL = 60
HOTNESS_TTL = 600
ESTIMATORS_TTL = 86_400
TABLES_TTL = 7 * 86_400

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,252}")
ENGINE = re.compile(r".+@[0-9a-f]{16}", re.DOTALL)
RECORD = struct.Struct("<QI")
BUCKET_HEADER = struct.Struct("<BQ")  # version, sequence number
CHECK = struct.Struct("<QQ")  # count, digest


class SchemaError(PlumageError):
    """A value on the server does not have the form of this module."""


class NewerSchemaError(SchemaError):
    """A value was written by a newer version. Readers ignore and count it."""


class Tier(IntEnum):
    """Where an engine holds a chunk, fastest first. GONE: nowhere."""

    GONE = 0
    GPU = 1
    HOST = 2
    DISK = 3


class Op(IntEnum):
    """What a record does to the set of chunks held. Readers update count and digest by it."""

    ADD = 0
    MOVE = 1  # held before and after; tier or tokens changed
    REMOVE = 2


_MOVED, _REMOVE = Op.MOVE << 28, int(Op.REMOVE)  # words below the first add; an enumeration is slow to compare


class State(IntEnum):
    """A replica's state, as its agent reports it."""

    WARMING = 0
    READY = 1
    DRAINING = 2
    STALLED = 3
    UNHEALTHY = 4


class Change(NamedTuple):
    """A chunk's new state at one replica.

    tier: 0 if it is no longer held. tokens: of the prompt, up to and including this chunk."""

    chunk: int
    tier: int = Tier.GPU
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's own figures at the time of the heartbeat.

    running, waiting: requests. held_back: of the waiting ones, those that FEATHER holds back on purpose.
    kv_usage: share of the cache in use, 0 to 1. adapters: those with running requests. served: those that requests may
    have; None where that is unknown."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    held_back: int = 0
    adapters: tuple[str, ...] = ()
    served: tuple[str, ...] | None = None


_UNKNOWN = "*"  # no adapter's name
_LOAD_NUMBERS = ("running", "waiting", "kv_usage", "held_back")


@dataclass(frozen=True, slots=True)
class Beat:
    """Registration and heartbeat of one replica.

    seq, count, digest: the last log entry, and the chunks held after it. engine: see `engine_name`."""

    epoch: str
    state: State = State.WARMING
    load: Load = field(default_factory=Load)
    seq: int = 0
    count: int = 0
    digest: int = 0
    engine: str = ""

    def to_hash(self) -> dict[str, str | int | float]:
        load = {name: getattr(self.load, name) for name in _LOAD_NUMBERS}
        own = {"epoch": self.epoch, "state": int(self.state), "seq": self.seq, "count": self.count}
        served = _UNKNOWN if self.load.served is None else ",".join(self.load.served)
        named = {"engine": self.engine, "adapters": ",".join(self.load.adapters), "served": served}  # without commas
        return {"v": SCHEMA_VERSION, **own, "digest": self.digest, **named, **load}

    @classmethod
    def from_hash(cls, found: Mapping[bytes, bytes]) -> Beat:
        check_version(found.get(b"v"))
        try:
            numbers = {name: float(found.get(name.encode(), b"0")) for name in _LOAD_NUMBERS}
            served = found.get(b"served", _UNKNOWN.encode())
            load = Load(
                int(numbers["running"]), int(numbers["waiting"]), numbers["kv_usage"], int(numbers["held_back"]),
                _names(found.get(b"adapters", b"")), None if served == _UNKNOWN.encode() else _names(served),
            )  # fmt: skip
            epoch, engine = found[b"epoch"].decode(), found.get(b"engine", b"").decode()
            seq, count, digest = (int(found[name]) for name in (b"seq", b"count", b"digest"))
            return cls(epoch, State(int(found[b"state"])), load, seq, count, digest, engine)
        except (KeyError, ValueError) as error:
            raise SchemaError(f"invalid heartbeat: {error!r}") from error


def _names(text: bytes) -> tuple[str, ...]:
    return tuple(text.decode().split(",")) if text else ()


def engine_name(model: str, rendering: str) -> str:
    """`MODEL@FINGERPRINT`: the base model's name, and the fingerprint of its folder for rendering and tokenizing.

    Chunks of two engines with the same name mean the same. Block size and release of the engines may differ."""
    return f"{model}@{rendering}"


def are_apart(ours: str, theirs: str) -> bool:
    """Whether two engine names are known to differ. A name that is empty or has no fingerprint equals all others."""
    return ours != theirs and all(ENGINE.fullmatch(name) for name in (ours, theirs))


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one replica; all in one slot of a Cluster."""

    pool: str
    replica: str

    def __post_init__(self) -> None:
        _check_name("pool", self.pool)
        _check_name("replica", self.replica)

    @property
    def _base(self) -> str:
        return f"{PREFIX}:{{{self.pool}/{self.replica}}}"

    @property
    def epoch(self) -> str:
        return f"{self._base}:epoch"

    @property
    def beat(self) -> str:
        return f"{self._base}:beat"

    def snap(self, epoch: str) -> str:
        return f"{self._base}:{epoch}:snap"

    def log(self, epoch: str) -> str:
        return f"{self._base}:{epoch}:log"


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """The keys that belong to a pool as a whole."""

    pool: str

    def __post_init__(self) -> None:
        _check_name("pool", self.pool)

    @property
    def _base(self) -> str:
        return f"{PREFIX}:{{{self.pool}}}"

    @property
    def work(self) -> str:
        return f"{self._base}:work"

    @property
    def hotness(self) -> str:
        return f"{self._base}:hotness"

    @property
    def hotness_view(self) -> str:
        return f"{self._base}:hotness:view"

    @property
    def hotness_lock(self) -> str:
        return f"{self._base}:hotness:lock"

    @property
    def estimators(self) -> str:
        return f"{self._base}:estimators"

    @property
    def quota_routers(self) -> str:
        return f"{self._base}:quota:routers"

    def quota(self, tenant: str, limit: str, window: int) -> str:
        """tenant: a digest of its name. window: number of the minute or day since 1970; 0 without windows."""
        return f"{self._base}:quota:{tenant}:{limit}:{window}"

    def tables(self, fingerprint: str) -> str:
        _check_name("fingerprint", fingerprint)
        return f"{self._base}:tables:{fingerprint}"


def _check_name(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        rule = "letters, digits and . _ @ : - only, a letter or digit first, at most 253"
        raise ConfigurationError(f"{what} {name!r} can't be part of a directory key: use {rule}")


def check_version(found: bytes | int | None) -> None:
    """NewerSchemaError: the version is above ours. SchemaError: it is no version."""
    try:
        version = int(found) if found is not None else 0
    except ValueError:
        version = 0
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(f"written by schema {version}, this reads up to {SCHEMA_VERSION}")
    if version < 1:
        raise SchemaError(f"no schema version: {found!r}")


# Records, buckets, log entries


def sequence(identifier: bytes | str) -> int:
    """The number of a log entry from its id, `SEQ-0`."""
    text = identifier.decode() if isinstance(identifier, bytes) else identifier
    return int(text.partition("-")[0])


def unpack_records(data: bytes | memoryview) -> tuple[list[tuple[int, int, int]], int, int]:
    """(changes as (chunk, tier, tokens), change of the count, change of the digest).

    SchemaError: the length is no multiple of a record's."""
    if len(data) % RECORD.size:
        raise SchemaError(f"records of {RECORD.size} bytes each can't be {len(data)} bytes long")
    records = [*RECORD.iter_unpack(data)]
    changes = [(chunk, word >> 24 & 15, word & MAX_TOKENS) for chunk, word in records]
    count = digest = 0
    for chunk, word in records:
        if word < _MOVED:
            count += 1
            digest += chunk
        elif word >> 28 == _REMOVE:
            count -= 1
            digest -= chunk
    return changes, count, digest


def pack_bucket(seq: int, records: Iterable[bytes]) -> bytes:
    return BUCKET_HEADER.pack(SCHEMA_VERSION, seq) + b"".join(records)


def unpack_bucket(data: bytes) -> tuple[int, memoryview]:
    """(sequence number, records) of one bucket of a snapshot. SchemaError: it is too short or has no known version."""
    if len(data) < BUCKET_HEADER.size:
        raise SchemaError(f"a snapshot bucket of {len(data)} bytes")
    version, seq = BUCKET_HEADER.unpack_from(data)
    check_version(version)
    return seq, memoryview(data)[BUCKET_HEADER.size :]


def pack_entry(records: bytes, check: tuple[int, int] | None = None) -> dict[Any, Any]:
    """The fields of one log entry. check: count and digest after it."""
    entry: dict[Any, Any] = {"v": SCHEMA_VERSION, "r": records}
    if check is not None:
        entry["c"] = CHECK.pack(*check)
    return entry


def read_entry(fields: Mapping[bytes, bytes]) -> tuple[bytes, tuple[int, int] | None]:
    """(records, check or None) of one log entry. SchemaError: the check mark or the version is invalid."""
    check_version(fields.get(b"v"))
    check = fields.get(b"c")
    if check is not None and len(check) != CHECK.size:
        raise SchemaError(f"a check mark of {len(check)} bytes")
    return fields.get(b"r", b""), CHECK.unpack(check) if check is not None else None
