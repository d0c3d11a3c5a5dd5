"""Where one engine and the agent beside it meet."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Meeting"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """events, replay: `ipc://` endpoints that the engine binds; token: the file with the bearer token of both."""

    events: str
    replay: str
    token: str
