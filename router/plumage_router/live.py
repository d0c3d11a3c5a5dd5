"""The router's configuration file, read again when it changes: what can be changed live is, the rest is refused aloud.

Live are `LIVE`: how to route, how much to bear, how long to wait. Everything else (where to listen, which model, whose
members, which keys' files) is what the process was built from; a change there waits for a new process, shows in `error`
and in the log, and keeps nothing live from being applied. A file that can't be used changes nothing at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from pydantic.alias_generators import to_camel

from plumage.cluster import LIVE_ROUTER_SETTINGS
from plumage.errors import ConfigurationError
from plumage_router.config import RouterConfig, load_config

__all__ = ["ConfigWatch", "merge"]

log = logging.getLogger(__name__)

_FIXED_LIMITS = ("max_directory_chunks",)  # the mirror's arrays are as large as that


def merge(now: RouterConfig, wanted: RouterConfig) -> tuple[RouterConfig, list[str]]:
    """What to run with from now on, and the fields of `wanted` that need a new process, as the file spells them."""
    kept = {name: getattr(now.limits, name) for name in _FIXED_LIMITS}
    refused = [f"limits.{to_camel(name)}" for name in kept if kept[name] != getattr(wanted.limits, name)]
    live = {name: getattr(wanted, name) for name in LIVE_ROUTER_SETTINGS}
    live["limits"] = wanted.limits.model_copy(update=kept)
    fixed = (name for name in RouterConfig.model_fields if name not in LIVE_ROUTER_SETTINGS)
    refused += [to_camel(name) for name in fixed if getattr(now, name) != getattr(wanted, name)]
    return now.model_copy(update=live), refused


class ConfigWatch:
    """`look` now and then. `error`: what of the file is not in force, None when all is. `apply` may raise
    ConfigurationError and has changed nothing then."""

    def __init__(self, path: Path, config: RouterConfig, apply: Callable[[RouterConfig], None]) -> None:
        self.error: str | None = None
        self._path = path
        self._config = config
        self._apply = apply
        self._seen = self._stamp()

    def look(self) -> None:
        """Reads the file if it changed. A mounted ConfigMap is replaced whole, by a link."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            config, refused = merge(self._config, load_config(self._path))
            if config != self._config:
                self._apply(config)
                self._config = config
                log.info("configuration read again from %s", self._path.name)
        except ConfigurationError as error:
            self._complain(f"{error}; the settings known before hold")
        else:
            self._complain(f"{', '.join(refused)}: only a new router process takes this" if refused else None)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def _complain(self, error: str | None) -> None:
        if error is not None and error != self.error:
            log.warning("configuration %s: %s", self._path.name, error)
        self.error = error
