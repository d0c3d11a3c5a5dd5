"""The router's configuration file, read again when it changes: what can be changed live is, the rest is refused aloud.

Live are `LIVE`: how to route, how much to bear, how long to wait. Everything else (where to listen, which model, whose
members, which keys' files) is what the process was built from; a change there waits for a new process, shows in `error`
and in the log, and keeps nothing live from being applied. A file that can't be used changes nothing at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic.alias_generators import to_camel

from plumage.cluster import LIVE_ROUTER_SETTINGS
from plumage.errors import ConfigurationError
from plumage_router.config import PoolConfig, RouterConfig, load_config

__all__ = ["ConfigWatch", "FileWatch", "merge", "only_anew"]

log = logging.getLogger(__name__)

_FIXED_LIMITS = ("max_directory_chunks",)  # the mirror's arrays are as large as that


_Config = TypeVar("_Config", bound=PoolConfig)


def merge(now: _Config, wanted: _Config, live_names: Sequence[str] = LIVE_ROUTER_SETTINGS) -> tuple[_Config, list[str]]:
    """What to run with from now on, and the fields of `wanted` that need a new process, as the file spells them."""
    kept = {name: getattr(now.limits, name) for name in _FIXED_LIMITS}
    refused = [f"limits.{to_camel(name)}" for name in kept if kept[name] != getattr(wanted.limits, name)]
    live = {name: getattr(wanted, name) for name in live_names}
    live["limits"] = wanted.limits.model_copy(update=kept)
    fixed = (name for name in type(now).model_fields if name not in live_names)
    refused += [to_camel(name) for name in fixed if getattr(now, name) != getattr(wanted, name)]
    return now.model_copy(update=live), refused


class FileWatch:
    """`error`: what of the file is not in force, None when all is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: str | None = None
        self._seen = self._stamp()

    def changed(self) -> bool:
        """Since it was asked last. A mounted ConfigMap is replaced whole, by a link."""
        before, self._seen = self._seen, self._stamp()
        return self._seen != before

    def complain(self, error: str | None) -> None:
        """Says it once."""
        if error is not None and error != self.error:
            log.warning("configuration %s: %s", self.path.name, error)
        self.error = error

    def refuse(self, error: ConfigurationError) -> None:
        """The file changed nothing."""
        self.complain(f"{error}; the settings known before hold")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


class ConfigWatch(FileWatch):
    """Of a router of one pool: `look` now and then. `apply` may raise ConfigurationError and has changed nothing
    then. `ignored`: what of the file that was read last is a newer operator's."""

    def __init__(self, path: Path, config: RouterConfig, apply: Callable[[RouterConfig], None]) -> None:
        super().__init__(path)
        self.ignored = config.ignored
        self._config = config
        self._apply = apply

    def look(self) -> None:
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
                log.info("configuration read again from %s", self.path.name)
        except ConfigurationError as error:
            self.refuse(error)
        else:
            self.complain(only_anew(refused))


def only_anew(refused: Sequence[str]) -> str | None:
    """What is said of fields that changed and can't be taken."""
    return f"{', '.join(refused)}: only a new router process takes this" if refused else None
