"""Short names of baselines, for settings that also accept the product's policies."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NamedBaselines"]


class NamedBaselines:
    """paths: `module:Class` by name, relative to `package`."""

    def __init__(self, package: str, paths: Mapping[str, str]) -> None:
        self._paths = {name: f"{package}.{path}" for name, path in paths.items()}
        self.names = tuple(self._paths)

    def path(self, name: str) -> str:
        """The value for settings: a baseline's import path, or a product's name unchanged."""
        return self._paths.get(name, name)
