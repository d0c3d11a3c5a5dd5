"""Reads the configuration of an engine's processes: one JSON file in camelCase, and the secrets that it names.

Unknown fields are refused, so that a typing mistake is not a silent default. An operator's files are the exception: the
operator may be a version newer (`plumage.version_skew`). Secrets are named by file and read once at start. They are in
no message and no repr.
"""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, SecretStr, ValidationError
from pydantic.alias_generators import to_camel

from plumage.errors import ConfigurationError
from plumage.version_skew import Settings

__all__ = ["Section", "is_loopback", "read_secret"]


class Section(Settings):
    """A part of the file, or the whole of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    @classmethod
    def read(cls, path: Path, **given: str | None) -> Self:
        """The whole file. ConfigurationError names the file and each mistake. given: fields from the command line,
        which replace the file's; None leaves the file's."""
        known = {name: value for name, value in given.items() if value is not None}
        try:
            found = json.loads(path.read_bytes())
            return cls.parse({**found, **known} if isinstance(found, dict) else found, path.name)
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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
