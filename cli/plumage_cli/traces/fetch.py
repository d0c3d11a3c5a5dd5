"""Downloads a public file: bounded, resumed, and kept only with the expected checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plumage_cli.errors import CliError
from plumage_cli.traces.record import require_file

__all__ = ["fetch"]

_PIECE = 1 << 16
_ATTEMPTS = 4
_SECONDS = 30.0  # without a byte from the server


def fetch(url: str, target: Path, sha256: str, *, max_bytes: int, progress: Callable[[int, int | None], None]) -> None:
    """Download `url` to `target`. After a broken connection the rest is fetched, also by the next call.

    CliError when the download fails, the file is larger than `max_bytes`, or the checksum differs.
    progress: called with the received bytes and the total bytes, None where the server does not send the length.
    """
    if not url.startswith(("http://", "https://")):
        raise CliError(f"can't fetch {url}: the address must begin with https:// or http://")
    require_file(target)
    part = target.with_name(target.name + ".part")
    try:
        _download(url, part, max_bytes, progress)
        found = _digest(part)
        if found != sha256.lower():
            part.unlink()
            raise CliError(f"{url} has the SHA-256 {found}, not {sha256.lower()}: it is not the expected file")
        os.replace(part, target)
    except OSError as error:
        raise CliError(
            f"can't write {target}: {error.strerror}; free some space, or choose another with --out"
        ) from None


def _download(url: str, part: Path, max_bytes: int, progress: Callable[[int, int | None], None]) -> None:
    last: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            _continue(url, part, max_bytes, progress)
            return
        except urllib.error.HTTPError as error:
            raise CliError(f"can't fetch {url}: the server answered {error.code} {error.reason}") from None
        except (http.client.InvalidURL, ValueError) as error:
            raise CliError(f"can't fetch {url}: it is not an address: {error}") from None
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            last = error
    reason = getattr(last, "reason", last)
    raise CliError(f"can't fetch {url}: {reason}; the received part is kept, and the same command continues from there")


def _continue(url: str, part: Path, max_bytes: int, progress: Callable[[int, int | None], None]) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        reply = urllib.request.urlopen(request, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            return  # nothing follows: the part is complete or of another file, which the digest shows
        raise
    with reply:
        resumed = reply.status == 206
        _copy(reply, part, have if resumed else 0, max_bytes, progress)


def _copy(reply: Any, part: Path, have: int, max_bytes: int, progress: Callable[[int, int | None], None]) -> None:
    length = reply.headers.get("Content-Length")
    total = have + int(length) if length and length.isdigit() else None
    if total is not None and total > max_bytes:
        raise CliError(f"the file has {total:,} bytes, more than the {max_bytes:,} allowed; see --max-bytes")
    with part.open("ab" if have else "wb") as file:
        while piece := reply.read(_PIECE):
            have += len(piece)
            if have > max_bytes:
                raise CliError(f"the file has more than the {max_bytes:,} bytes allowed; see --max-bytes")
            file.write(piece)
            progress(have, total)
    if total is not None and have < total:
        raise ConnectionError("the connection ended early")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
