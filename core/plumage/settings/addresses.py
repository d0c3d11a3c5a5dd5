"""Addresses that the settings files of one pool have in common, with the files of their credentials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from plumage.settings.secrets import EngineTlsFiles

__all__ = ["DirectoryAddress", "EngineSockets", "EventEndpoint"]


@dataclass(frozen=True, slots=True)
class DirectoryAddress:
    """url: without credentials. username, password_file, ca_file: of a directory that needs them."""

    url: str
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineSockets:
    """What an engine and its agent share.

    events, replay: `ipc://` endpoints that the engine binds. token: the file with the bearer token of both's own
    routes. api_key: the file with the key of the engine's `/v1`. tls: its certificates; None for plain HTTP."""

    events: str
    replay: str
    token: str
    api_key: str
    tls: EngineTlsFiles | None = None


def _local(endpoint: str) -> str:
    scheme, separator, path = endpoint.partition("://")
    if scheme not in ("ipc", "inproc") or not separator or not path or any(map(str.isspace, path)):
        raise ValueError(
            f"must be ipc:///PATH, in a folder that only engine and agent can enter, got {endpoint!r}: events carry"
            " prompts and salts, so they never travel over a network"
        )
    return endpoint


EventEndpoint = Annotated[str, AfterValidator(_local)]
"""Where an engine's KV events may travel: `ipc://` sockets in a folder that engine and agent share, never over TCP.

The events contain prompts and tenants' salts, and every client that reaches the pod could read a TCP port. `inproc://`
stays inside one process and is for tests."""
