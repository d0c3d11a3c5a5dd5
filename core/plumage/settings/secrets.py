"""The files with a pool's own secrets: made at `plumage up`, or mounted from the pool's Secrets in a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ENGINE_KEY", "PREVIOUS_ENGINE_KEY", "SALT_KEY", "CertificateFiles", "EngineTlsFiles", "SecretFiles"]

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


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of PEM files, as cert-manager names them in a Secret. authority: the certificates to trust."""

    certificate: str
    key: str
    authority: str

    @classmethod
    def in_folder(cls, folder: str) -> CertificateFiles:
        """The entries of one Secret that is mounted there."""
        return cls(f"{folder}/tls.crt", f"{folder}/tls.key", f"{folder}/ca.crt")


@dataclass(frozen=True, slots=True)
class EngineTlsFiles:
    """Of an engine's pod. server: of the engine. client: of routers, if engines ask clients for a certificate."""

    server: CertificateFiles
    client: CertificateFiles | None = None
