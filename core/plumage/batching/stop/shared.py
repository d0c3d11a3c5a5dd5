"""What stop policies have learned, passed between engines of one fingerprint (model, device, configuration).

An engine that started from shared tables reports their experience again with its own, so counts are not added up. For
each cell the pool has the mean of all means, weighted by count, and the largest count. In a new engine a shared cell
counts for `CELL` choices at most, and a fit of the step time for `STEPS` steps, so that its own experience soon
outweighs them. Pure: bytes in, rows out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import msgspec

from plumage.batching.stop.step_time import SUM, StepTime
from plumage.batching.stop.table import ActionTable, Row
from plumage.errors import ConfigurationError

__all__ = ["CELL", "MOST_ROWS", "STEPS", "LearnedTable", "SharesTable", "checked", "experience", "merged", "pack",
           "unpack"]  # fmt: skip

CELL = 32.0
STEPS = 512.0
"""A fit weighs its last thousand steps, and steps in a row are much alike."""
MOST_ROWS = 4096


class LearnedTable(msgspec.Struct, frozen=True):
    """The table that an engine sends and receives. life: differs after each start of the engine."""

    fingerprint: str
    policy: str
    rows: list[Row]
    life: str = ""


@runtime_checkable
class SharesTable(Protocol):
    """A stop policy that learns in a table, or in the sums of a fit."""

    def rows(self) -> Iterator[Row]: ...

    def merge(self, rows: Iterable[Row]) -> None:
        """Adds the rows. ConfigurationError, and no change, if they are not valid."""
        ...


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Row]).decode


def checked(rows: list[Row]) -> list[Row]:
    """The rows, or ConfigurationError for what no table can hold."""
    if len(rows) > MOST_ROWS:
        raise ConfigurationError(f"a learned table of {len(rows)} rows; at most {MOST_ROWS} are possible")
    if any(not 0 <= part <= 64 for row in rows for part in row[:3]):
        raise ConfigurationError("a learned table's states must be small whole numbers")
    if any(row[3] == SUM for row in rows):
        StepTime().merge(rows)
    else:
        ActionTable.from_rows(rows)
    return rows


def experience(rows: Iterable[Row]) -> float:
    """The choices that a table has counted, or the steps of a fit."""
    return sum(count for one, other, _, name, count, _ in rows if name != SUM or one == other == 0)


def pack(rows: Iterable[Row]) -> bytes:
    return _encode(list(rows))


def unpack(data: bytes) -> list[Row]:
    """ConfigurationError when it is damaged."""
    try:
        return checked(_decode(data))
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"a learned table can't be read: {error}") from error


def merged(tables: Iterable[Iterable[Row]]) -> list[Row]:
    """Merges the tables of several engines into one for a new engine."""
    cells: dict[tuple[int, int, int, str], list[float]] = {}  # largest count, sum of counts, sum of values
    for rows in tables:
        for batch, loss, peers, action, count, value in rows:
            cell = cells.setdefault((batch, loss, peers, action), [0.0, 0.0, 0.0])
            cell[0] = max(cell[0], count)
            cell[1] += count
            cell[2] += value
    found: list[Row] = []
    for (batch, loss, peers, action), (largest, total, value) in sorted(cells.items()):
        count = min(largest, STEPS if action == SUM else CELL)
        if count > 0.0:
            found.append((batch, loss, peers, action, count, value / total * count))
    return found
