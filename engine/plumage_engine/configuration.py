"""Reads the settings file of an engine's processes, and the secrets that it names.

Secrets are named by file and read once at start. They are in no message and no repr.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import SecretStr, ValidationError

from plumage.errors import ConfigurationError
from plumage.version_skew import Settings

__all__ = ["read_file", "read_secret"]

_Read = TypeVar("_Read", bound=Settings)


def read_file(path: Path, kind: type[_Read], **given: str | None) -> _Read:
    """The whole file. ConfigurationError names the file and each mistake. given: fields from the command line, which
    replace the file's; None leaves the file's."""
    known = {name: value for name, value in given.items() if value is not None}
    try:
        found = json.loads(path.read_bytes())
        return kind.parse({**found, **known} if isinstance(found, dict) else found, path.name)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors()]
        raise ConfigurationError(f"{path}:\n" + "\n".join(f"  - {line}" for line in lines)) from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from error


def read_secret(path: Path | None) -> SecretStr | None:
    """The secret in a file, without its final line break; None for no file. ConfigurationError when it is empty, or
    can't be sent in a header."""
    if path is None:
        return None
    try:
        secret = path.read_text().strip()
    except (OSError, ValueError) as error:  # no valid path, or no UTF-8
        raise ConfigurationError(f"cannot read the secret in {str(path)!r}: {type(error).__name__}") from error
    if not secret:
        raise ConfigurationError(f"{path} is empty; it must hold a token")
    if not (secret.isascii() and secret.isprintable()):
        raise ConfigurationError(f"{path} must hold one line of printable ASCII, because it is sent in a header")
    return SecretStr(secret)
