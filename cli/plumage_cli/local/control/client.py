"""The commands' side of the control socket: find a running pool and send it a request."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from plumage_cli.errors import CliError, NoPoolError
from plumage_cli.local.folder.pool_folder import CONTROL_SOCKET, base_folder, live_pools

__all__ = ["ask", "find_pool"]

_MAX_REPLY = 16 << 20  # bytes; a thousand replicas with their traffic need one or two million


def find_pool(name: str | None) -> Path:
    """The folder of the running pool `name`, or of the only one. NoPoolError, with the running pools, otherwise."""
    pools = live_pools()
    if name is None and len(pools) == 1:
        return base_folder() / pools[0]
    if name is not None and name in pools:
        return base_folder() / name
    if not pools:
        raise NoPoolError("no pool is running; start one with: plumage up examples/local.yaml")
    reason = f"no pool {name} is running, only" if name else "several pools are running; name one of"
    raise NoPoolError(f"{reason}: {', '.join(pools)}")


def ask(folder: Path, request: dict[str, Any], *, timeout: float) -> dict[str, Any]:
    """Send one request to the pool in `folder`; its view afterwards (`plumage_cli.local.pool_view`).

    CliError when the request fails or takes longer than `timeout` seconds.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(folder / CONTROL_SOCKET))
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply = connection.makefile("rb").readline(_MAX_REPLY)
    except TimeoutError:
        raise CliError(
            f"pool {folder.name} did not answer within {timeout:g} s: it is busy or stopped, and may still carry out "
            "the request; see: plumage status"
        ) from None
    except OSError as error:
        raise NoPoolError(
            f"pool {folder.name} can't be reached: {error.strerror}; it may be starting or ending"
        ) from None
    if not reply:
        raise CliError(f"pool {folder.name} ended before it answered")
    return _read(reply, folder.name)


def _read(reply: bytes, pool: str) -> dict[str, Any]:
    try:
        answer = json.loads(reply)
    except (ValueError, RecursionError):
        raise CliError(f"pool {pool} sent an incomplete reply; it may be ending") from None
    if isinstance(answer, dict) and "error" in answer:
        raise CliError(str(answer["error"]))
    from plumage_cli.local.pool_view import check  # imports msgspec, which is slow, only after a reply

    check(answer, pool)
    found: dict[str, Any] = answer
    return found
