"""The files with a pool's own secrets: made at `plumage up`, or mounted from the pool's Secret in a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ENGINE_KEY", "PREVIOUS_ENGINE_KEY", "SALT_KEY", "SecretFiles"]

ENGINE_KEY: Final = "engine-key"
"""What engines ask of routers and agents on `/v1`."""
PREVIOUS_ENGINE_KEY: Final = "previous-engine-key"
"""The key of before, while engines are restarted for a new one; absent else."""
SALT_KEY: Final = "salt-key"
"""What tenants' cache salts are made with."""


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
