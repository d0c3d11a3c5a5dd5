"""Makes the secret of one pod, which its agent, its engine and its preStop hook share on an emptyDir in memory.

The agent makes it before it serves. As a native sidecar it starts first, so the engine finds the file. A restarted
agent keeps the file, because the engine still uses the value that it read.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from plumage.errors import ConfigurationError

__all__ = ["ensure_token"]

BYTES = 32


def ensure_token(path: Path) -> None:
    """Make the file, readable by its owner only, unless it exists. It is linked into place when it is complete, so
    nobody reads a half-written one, and a second process keeps the first one's. ConfigurationError when that fails."""
    if path.exists():
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(BYTES))
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    except OSError as error:
        reason = f"{error.strerror}; its folder must be a volume that this user may write"
        raise ConfigurationError(f"cannot make the pod's token {path}: {reason}") from error
