"""The exception tree of the pure ring.

PlumageError
├── ConfigurationError      what a person wrote can't work; the message says what to change
│   └── ManifestError       a manifest, with every mistake at once
├── CallerRefusedError      a caller of a pod's own routes is not let in
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
    """A caller is not let in. `status`: 401 for what proves nothing, 403 for somebody who may not, 503 where nobody can
    be known now. The message says why and never holds the secret."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class StateError(PlumageError):
    """A caller used an object against its contract."""
