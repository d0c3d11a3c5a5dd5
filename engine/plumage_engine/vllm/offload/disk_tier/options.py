"""The disk tier's folder and size, from the connector's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plumage.errors import ConfigurationError

__all__ = ["DISK_BYTES", "DISK_PATH", "DiskOptions", "read_disk"]

DISK_PATH: Final = "disk_path"
DISK_BYTES: Final = "disk_bytes_to_use"


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """folder: on the disk.
    size: bytes for chunks.
    """

    folder: Path
    size: int


def read_disk(options: Mapping[str, Any]) -> DiskOptions | None:
    """Read the connector's extra config; None where no disk is configured. ConfigurationError names a mistake."""
    if unknown := sorted(name for name in options if name.startswith("disk") and name not in (DISK_PATH, DISK_BYTES)):
        raise ConfigurationError(f"host tier: no option {', '.join(unknown)}; of the disk: {DISK_PATH}, {DISK_BYTES}")
    path, size = options.get(DISK_PATH), options.get(DISK_BYTES)
    if path is None and size is None:
        return None
    if not isinstance(path, str) or not Path(path).is_absolute():
        raise ConfigurationError(f"host tier: {DISK_PATH} must be a folder's absolute path, got {path!r}")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigurationError(f"host tier: {DISK_BYTES} must be bytes, a whole number above 0, got {size!r}")
    return DiskOptions(Path(path), size)
