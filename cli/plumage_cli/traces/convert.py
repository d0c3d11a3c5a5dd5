"""Converts public traces to Mooncake's format.

| format   | source                                          | prefixes                                            |
|----------|-------------------------------------------------|-----------------------------------------------------|
| azure    | Azure LLM inference 2023, 2024 (CSV)            | none: no request shares a prefix                    |
| burstgpt | BurstGPT (CSV)                                  | none: no request shares a prefix                    |
| bailian  | Qwen Bailian usage traces (JSONL, blocks of 16) | 32 blocks of 16 become one of 512, chained          |
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from plumage_cli.errors import CliError
from plumage_cli.traces.record import BLOCK, Request, lines, read_mooncake

__all__ = ["FORMATS", "convert"]

_BAILIAN_BLOCK = 16
_MOST_TOKENS = 100_000_000  # of one request; ten times the longest context of today's models
_T = TypeVar("_T")


def convert(path: Path, format_: str) -> Iterator[Request]:
    """The requests of a trace, the first at 0 ms.

    CliError names a line that is wrong or out of order. It also refuses a trace without requests, which is most likely
    the wrong file or format.
    """
    first, last = None, 0
    for number, request in enumerate(FORMATS[format_](path), 1):
        first = request.timestamp if first is None else first
        if request.timestamp < last and number > 1:
            raise CliError(
                f"{path}: request {number} has an earlier time than the request before it; sort the file by time first"
            )
        last = request.timestamp
        yield Request(last - first, request.input_length, request.output_length, request.hash_ids)
    if first is None:
        raise CliError(f"{path} contains no request in the format {format_}; is it the right file and format?")


def _rows(path: Path, *columns: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The rows with their position in the file. CliError where the header lacks one of `columns`."""
    reader = csv.DictReader(line for _, line in lines(path))
    try:
        header = reader.fieldnames or columns  # an empty file has no header and no rows
        for name in columns:
            if name not in header:
                raise CliError(f"{path} line 1: there is no column {name!r}; is it another format?")
        for row in reader:
            yield f"{path} line {reader.line_num}", row
    except csv.Error as error:
        raise CliError(f"{path} line {reader.line_num} is not CSV: {error}") from None


def _azure(path: Path) -> Iterator[Request]:
    fresh = count()
    for where, row in _rows(path, "TIMESTAMP", "ContextTokens", "GeneratedTokens"):
        moment = _field(where, row, "TIMESTAMP", _moment)
        tokens = _field(where, row, "ContextTokens", _count)
        yield Request(moment, tokens, _field(where, row, "GeneratedTokens", _count), _unshared(tokens, fresh))


def _burstgpt(path: Path) -> Iterator[Request]:
    fresh = count()
    for where, row in _rows(path, "Timestamp", "Request tokens", "Response tokens"):
        tokens = _field(where, row, "Request tokens", _count)
        answer = _field(where, row, "Response tokens", _count)
        if tokens and answer:  # a failed request has no response
            moment = _field(where, row, "Timestamp", _seconds)
            yield Request(moment, tokens, answer, _unshared(tokens, fresh))


def _bailian(path: Path) -> Iterator[Request]:
    known: dict[tuple[int, ...], int] = {}
    for number, line in lines(path):
        try:
            fields = json.loads(line)
            blocks = tuple(map(int, fields["hash_ids"]))
            moment, tokens = _seconds(fields["timestamp"]), _count(fields["input_length"])
            answer = _count(fields["output_length"])
        except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise CliError(f"{path} line {number} is not in Bailian's format: {type(error).__name__} {error}") from None
        yield Request(moment, tokens, answer, _coarser(blocks, known))


def _coarser(blocks: tuple[int, ...], known: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    """Join 32 small blocks, with the block before them, to one large block. Equal ids still mean equal prefixes."""
    size, parent, ids = BLOCK // _BAILIAN_BLOCK, -1, []
    for start in range(0, len(blocks), size):
        parent = known.setdefault((parent, *blocks[start : start + size]), len(known))
        ids.append(parent)
    return tuple(ids)


def _unshared(tokens: int, fresh: Iterator[int]) -> tuple[int, ...]:
    return tuple(next(fresh) for _ in range(-(-tokens // BLOCK)))


def _field(where: str, row: Mapping[str, str], name: str, read: Callable[[str], _T]) -> _T:
    try:
        return read(row[name])
    except (ArithmeticError, ValueError, TypeError):
        raise CliError(f"{where}: {name} is {row[name]!r}, which is not a valid value") from None


def _count(value: Any) -> int:
    """Tokens of a prompt or a response."""
    count = int(value)
    if not 0 <= count <= _MOST_TOKENS:
        raise ValueError
    return count


def _seconds(value: Any) -> int:
    """Seconds as milliseconds."""
    return round(1000 * float(value))


def _moment(text: str) -> int:
    """Milliseconds. The traces write seven digits of a second, Python reads six. A time without a zone is UTC."""
    moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.strip()))
    return round(1000 * (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


FORMATS: dict[str, Callable[[Path], Iterator[Request]]] = {
    "azure": _azure,
    "burstgpt": _burstgpt,
    "bailian": _bailian,
    "mooncake": read_mooncake,
}
