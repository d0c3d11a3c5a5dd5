"""Reads the router's configuration file (`plumage.settings.router_config`), for one pool or for several.

Unknown fields in the file of a newer operator are ignored (`plumage.version_skew`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from plumage.errors import ConfigurationError
from plumage.settings.router_config import MultiPoolConfig, RouterConfig
from plumage.version_skew import Settings

__all__ = ["is_multi_pool", "load_config", "load_multi_pool"]

_Read = TypeVar("_Read", bound=Settings)


def load_config(path: Path) -> RouterConfig:
    """Returns the file's content. Raises ConfigurationError with all errors in it."""
    return _read(path, RouterConfig)


def load_multi_pool(path: Path) -> MultiPoolConfig:
    """`load_config` for the file of several pools. Pools may change while it runs (`multi_pool/server.py`)."""
    return _read(path, MultiPoolConfig)


def is_multi_pool(path: Path) -> bool:
    """Whether the file is for several pools. False for an unreadable file: the router of one pool reports the error."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "gateway" in content


def _read(path: Path, kind: type[_Read]) -> _Read:
    try:
        return kind.parse(from_json(path.read_bytes()), path.name)
    except OSError as error:
        raise ConfigurationError(f"cannot read the router's configuration {path}: {error.strerror}") from error
    except ValidationError as error:
        lines = (f"  - {'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise ConfigurationError(f"{path} is not a router configuration:\n" + "\n".join(lines)) from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a router configuration:\n  - file: Invalid JSON: {error}") from error
