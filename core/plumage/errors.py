"""The exception tree of the pure ring.

PlumageError
├── ConfigurationError      what a person wrote can't work; the message says what to change
│   └── ManifestError       a manifest, with every mistake at once
├── CallerRefusedError      a caller of a pod's own routes was refused
└── StateError              a caller broke a contract: an unknown request, a block freed twice
"""

from __future__ import annotations

from plumage.plural import counted

__all__ = ["CallerRefusedError", "ConfigurationError", "ManifestError", "PlumageError", "StateError"]


class PlumageError(Exception):
    """Base of all errors that Plumage raises on purpose."""


class ConfigurationError(PlumageError):
    """A setting can't work; the message names it and what to do."""


class ManifestError(ConfigurationError):
    """A manifest is wrong. `mistakes` holds one line a mistake: path, what it must be, what it got."""

    def __init__(self, source: str, mistakes: list[str]) -> None:
        self.source = source
        self.mistakes = mistakes
        super().__init__(
            f"{source}: {counted(len(mistakes), 'mistake')}\n" + "\n".join(f"  - {line}" for line in mistakes)
        )


class CallerRefusedError(PlumageError):
    """A caller was refused. The message gives the reason and never contains the secret.

    status: 401 if it is not authenticated, 403 if it is not on the list, 503 if no caller can be authenticated now."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class StateError(PlumageError):
    """A caller used an object against its contract."""
