"""One request of a trace, read from and written to Mooncake's format. Each line is checked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from plumage_cli.errors import CliError

__all__ = ["BLOCK", "Request", "read_mooncake", "require_file", "write_mooncake"]

BLOCK = 512  # tokens per hash id
_LONGEST_LINE = 4_000_000  # characters


@dataclass(frozen=True, slots=True)
class Request:
    """timestamp: ms. hash_ids: one per block of 512 prompt tokens; the last block may be partial."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_mooncake(path: Path) -> Iterator[Request]:
    """Requests in the order of the file; CliError names the line that is wrong."""
    for number, line in lines(path):
        yield _parse(line, f"{path} line {number}")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), ""), 1):
                if len(line) > _LONGEST_LINE:
                    raise CliError(f"{path} line {number} is longer than {_LONGEST_LINE:,} characters")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise CliError(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"can't read {path}: it is not UTF-8 text; is it compressed?") from None


def write_mooncake(path: Path, requests: Iterable[Request]) -> int:
    """Write the requests atomically; their number."""
    require_file(path)
    draft, count = path.with_name(path.name + ".part"), 0
    try:
        with draft.open("w", encoding="utf-8") as file:
            for count, request in enumerate(requests, 1):  # noqa: B007 - the last count is the number of requests
                file.write(_line(request))
        draft.replace(path)
    except OSError as error:
        raise CliError(f"can't write {path}: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
    return count


def require_file(path: Path) -> None:
    """CliError where `path` is a folder or a device, which must not be replaced."""
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise CliError(f"can't write {path}: it exists and is not a file; choose another name")


def _line(request: Request) -> str:
    return (
        json.dumps(
            {
                "timestamp": request.timestamp,
                "input_length": request.input_length,
                "output_length": request.output_length,
                "hash_ids": request.hash_ids,
            }
        )
        + "\n"
    )


def _parse(line: str, where: str) -> Request:
    try:
        fields = json.loads(line)
        request = Request(
            timestamp=int(fields["timestamp"]),
            input_length=int(fields["input_length"]),
            output_length=int(fields["output_length"]),
            hash_ids=tuple(map(int, fields["hash_ids"])),
        )
    except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CliError(f"{where} is not in Mooncake's format: {type(error).__name__} {error}") from None
    tokens, ids, due = request.input_length, len(request.hash_ids), -(-request.input_length // BLOCK)
    if request.timestamp < 0 or tokens < 0 or request.output_length < 0:
        raise CliError(f"{where}: timestamp and lengths may not be negative")
    if ids != due:
        raise CliError(f"{where}: hash_ids must have {due} ids, one for each {BLOCK} of {tokens} tokens, got {ids}")
    return request
