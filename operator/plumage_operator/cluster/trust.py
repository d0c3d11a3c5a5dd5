"""Whom the operator trusts to be the API server: the authority's file, as it was when this process began.

Its HTTP clients, kopf's among them, read the file once. When a cluster renews its authority, the kubelet writes the new
one beside the old before any server shows a certificate of it; a process that noticed nothing would lose its watches on
that day. So a change of the file ends the process, which the kubelet starts anew.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, NoReturn

from plumage.errors import PlumageError

__all__ = ["TrustChangedError", "keep_trusting"]

EVERY: Final = 10.0  # seconds


class TrustChangedError(PlumageError):
    """Another authority signs the API server's certificate, or soon will."""


async def keep_trusting(file: str | None, every: float = EVERY) -> NoReturn:
    """For ever, while the file holds what it held at the call; TrustChangedError then. None: the system's authorities
    are trusted, which are a part of the image. A file that can't be read now says nothing."""
    first = _content(file)
    while True:
        await asyncio.sleep(every)
        now = _content(file)
        if first != now and first is not None and now is not None:
            raise TrustChangedError(f"{file} holds another authority than at the start")


def _content(file: str | None) -> bytes | None:
    try:
        return None if file is None else Path(file).read_bytes()
    except OSError:
        return None
