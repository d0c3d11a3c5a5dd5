"""Watches the router's configuration file and applies changes at runtime.

The settings in `LIVE_ROUTER_SETTINGS` apply at once: routing, limits, timeouts. Other changes, such as the model or the
listening port, need a new process: `error` and the log say so, and the live changes apply anyway. An invalid file
changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic.alias_generators import to_camel

from plumage.cluster import LIVE_ROUTER_SETTINGS
from plumage.errors import ConfigurationError
from plumage.settings.router_config import PoolConfig, RouterConfig
from plumage_router.config import load_config

__all__ = ["ConfigWatch", "FileWatch", "merge", "restart_needed"]

log = logging.getLogger(__name__)

_FIXED_LIMITS = ("max_directory_chunks",)  # fixes the size of the mirror's arrays


_Config = TypeVar("_Config", bound=PoolConfig)


def merge(now: _Config, wanted: _Config, live_names: Sequence[str] = LIVE_ROUTER_SETTINGS) -> tuple[_Config, list[str]]:
    """Returns the configuration to use now, and the fields of `wanted` that need a new process, as in the file."""
    kept = {name: getattr(now.limits, name) for name in _FIXED_LIMITS}
    refused = [f"limits.{to_camel(name)}" for name in kept if kept[name] != getattr(wanted.limits, name)]
    live = {name: getattr(wanted, name) for name in live_names}
    live["limits"] = wanted.limits.model_copy(update=kept)
    fixed = (name for name in type(now).model_fields if name not in live_names)
    refused += [to_camel(name) for name in fixed if getattr(now, name) != getattr(wanted, name)]
    return now.model_copy(update=live), refused


class FileWatch:
    """`error`: why the file, or a part of it, is not in force; None when all of it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: str | None = None
        self._seen = self._stamp()

    def changed(self) -> bool:
        """Whether the file changed since the last call. The kubelet replaces a mounted ConfigMap by a link."""
        before, self._seen = self._seen, self._stamp()
        return self._seen != before

    def report(self, error: str | None) -> None:
        """Logs an error once, and keeps it in `error`."""
        if error is not None and error != self.error:
            log.warning("configuration %s: %s", self.path.name, error)
        self.error = error

    def refuse(self, error: ConfigurationError) -> None:
        """Keeps the settings as they are, since the file is invalid."""
        self.report(f"{error}; the previous settings stay in force")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


class ConfigWatch(FileWatch):
    """Watches the file of a router of one pool. Call `check` every few seconds.

    `ignored`: fields of a newer operator in the file that was read last.
    apply: applies a configuration; when it raises ConfigurationError, it has changed nothing.
    """

    def __init__(self, path: Path, config: RouterConfig, apply: Callable[[RouterConfig], None]) -> None:
        super().__init__(path)
        self.ignored = config.ignored
        self._config = config
        self._apply = apply

    def check(self) -> None:
        """Reads the file if it changed."""
        if not self.changed():
            return
        try:
            wanted = load_config(self.path)
            config, refused = merge(self._config, wanted)
            self.ignored = wanted.ignored
            if config != self._config:
                self._apply(config)
                self._config = config
                log.info("configuration reloaded from %s", self.path.name)
        except ConfigurationError as error:
            self.refuse(error)
        else:
            self.report(restart_needed(refused))


def restart_needed(fields: Sequence[str]) -> str | None:
    """The error for fields that changed and cannot be applied at runtime."""
    return f"{', '.join(fields)}: this change needs a new router process" if fields else None
