"""Where an engine's KV events may travel: `ipc://` sockets in a folder that engine and agent share, never over TCP.

The events contain prompts and tenants' salts, and every client that reaches the pod could read a TCP port. `inproc://`
stays inside one process and is for tests.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

__all__ = ["EventEndpoint"]


def _local(endpoint: str) -> str:
    scheme, separator, path = endpoint.partition("://")
    if scheme not in ("ipc", "inproc") or not separator or not path or any(map(str.isspace, path)):
        raise ValueError(
            f"must be ipc:///PATH, in a folder that only engine and agent can enter, got {endpoint!r}: events carry"
            " prompts and salts, so they never travel over a network"
        )
    return endpoint


EventEndpoint = Annotated[str, AfterValidator(_local)]
