"""The files with a pool's own secrets: made at `plumage up`, or mounted from the pool's Secret in a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ENGINE_KEY", "PREVIOUS_ENGINE_KEY", "SALT_KEY", "SecretFiles"]

ENGINE_KEY: Final = "engine-key"
"""The key that routers and agents send to an engine's `/v1`."""
PREVIOUS_ENGINE_KEY: Final = "previous-engine-key"
"""The previous key, while engines restart for a new one; otherwise absent."""
SALT_KEY: Final = "salt-key"
"""The key from which tenants' cache salts are computed."""


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """Paths. The files of the first and the last must exist."""

    engine_key: str
    previous_engine_key: str
    salt_key: str

    @classmethod
    def in_folder(cls, folder: str) -> SecretFiles:
        """The entries of one Secret that is mounted there."""
        return cls(f"{folder}/{ENGINE_KEY}", f"{folder}/{PREVIOUS_ENGINE_KEY}", f"{folder}/{SALT_KEY}")
