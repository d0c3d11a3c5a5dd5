"""The format of Mooncake's published traces, read and checked: one JSON object a line.

    {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [one a block of 512 prompt tokens]}

An id names a block and everything before it. So an id always has the same predecessor, and equal ids mean an equal
prefix. The last block of a prompt is partial if the length is not a multiple of 512.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumage.errors import ConfigurationError
from plumage.plural import counted

__all__ = ["BLOCK", "MOST_REQUESTS", "TracedRequest", "load", "parse"]

BLOCK = 512
MOST_REQUESTS = 1_000_000
_MOST_SHOWN = 10
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """at: seconds from the trace's start. blocks: one id for each block of 512 prompt tokens; the last may be
    partial."""

    at: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]

    @property
    def full_blocks(self) -> tuple[int, ...]:
        """The blocks that an engine can cache: those that the prompt fills."""
        return self.blocks[: self.input_tokens // BLOCK]


def load(path: Path) -> list[TracedRequest]:
    """Read a file; ConfigurationError names it, and each bad line by its number."""
    try:
        with path.open("rb") as lines:
            return parse(lines, str(path))
    except OSError as error:
        raise ConfigurationError(f"can't read the trace {path}: {error.strerror or error}") from error


def parse(lines: Iterable[bytes], source: str) -> list[TracedRequest]:
    """Requests in the order of the lines; empty lines are skipped. ConfigurationError lists the invalid lines."""
    requests: list[TracedRequest] = []
    mistakes: list[str] = []
    before: dict[int, int | None] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(requests) == MOST_REQUESTS:
            raise ConfigurationError(f"{source}: more than {MOST_REQUESTS:,} requests; replay a part of the trace")
        try:
            request = _request(line)
            _check_order(request, requests)
            _check_chain(request.blocks, before)
        except ValueError as error:
            mistakes.append(f"line {number}: {error}")
            continue
        requests.append(request)
    if mistakes:
        raise ConfigurationError(_listed(source, mistakes))
    if not requests:
        raise ConfigurationError(f"{source}: no requests; a trace has one JSON object a line with {', '.join(_FIELDS)}")
    return requests


def _listed(source: str, mistakes: Sequence[str]) -> str:
    shown = [f"  - {mistake}" for mistake in mistakes[:_MOST_SHOWN]]
    if len(mistakes) > _MOST_SHOWN:
        shown.append(f"  … and {len(mistakes) - _MOST_SHOWN} more")
    return "\n".join([f"{source}: {counted(len(mistakes), 'bad line')}", *shown])


def _request(line: bytes) -> TracedRequest:
    """Raises ValueError with the mistake in the line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"must be a JSON object, got {type(record).__name__}")
    missing = [name for name in _FIELDS if name not in record]
    if missing:
        raise ValueError(f"misses {', '.join(missing)}")
    tokens = _whole(record, "input_length", least=1)
    blocks = _ids(record["hash_ids"])
    if len(blocks) != -(-tokens // BLOCK):
        raise ValueError(
            f"hash_ids must have {-(-tokens // BLOCK)} ids, one for each {BLOCK} of {tokens} tokens, got {len(blocks)}"
        )
    return TracedRequest(_seconds(record["timestamp"]), tokens, _whole(record, "output_length", least=0), blocks)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ValueError(f"timestamp must be milliseconds from 0 on, got {value!r}")
    return float(value) / 1000.0


def _whole(record: Mapping[str, Any], name: str, *, least: int) -> int:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(one) is int and 0 <= one < 2**63 for one in value)
    if not whole:
        raise ValueError("hash_ids must be a list of whole numbers from 0 to 2^63")
    return tuple(value)


def _check_order(request: TracedRequest, earlier: Sequence[TracedRequest]) -> None:
    if earlier and request.at < earlier[-1].at:
        raise ValueError(f"timestamp {request.at * 1000:.0f} is before the last, {earlier[-1].at * 1000:.0f}; sort it")


def _check_chain(blocks: Sequence[int], before: dict[int, int | None]) -> None:
    """Each id must always have the same predecessor. Records new ids."""
    last: int | None = None
    for block in blocks:
        if before.setdefault(block, last) != last:
            raise ValueError(f"id {block} follows {last} here and {before[block]} earlier; ids name a whole prefix")
        last = block
