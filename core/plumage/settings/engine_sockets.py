"""The sockets and secret files that an engine and its agent share."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineSockets"]


@dataclass(frozen=True, slots=True)
class EngineSockets:
    """events, replay: `ipc://` endpoints that the engine binds. token: the file with the bearer token of both's own
    routes. api_key: the file with the key of the engine's `/v1`."""

    events: str
    replay: str
    token: str
    api_key: str
