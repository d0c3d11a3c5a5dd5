"""The password of the directory, read from a file at each connection, so that it can be rotated.

Two options of our own in the URL name the file and the user: `password_file=/path` and `password_user=name`. Everything
that accepts a URL accepts them, and the URL holds no secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

__all__ = ["split_file_options", "with_file_options"]

_FILE, _USER = "password_file", "password_user"


class _FileCredentials(CredentialProvider):
    def __init__(self, path: Path, user: str | None) -> None:
        self._path = path
        self._user = user

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AuthenticationError(f"cannot read the password in {self._path}: {type(error).__name__}") from error
        return (password,) if self._user is None else (self._user, password)


def with_file_options(url: str, user: str | None, password_file: Path | None, ca_file: Path | None) -> str:
    """The URL with options for the files that a configuration names; unchanged if it names none."""
    options = {"ssl_ca_certs": ca_file, _USER: user if password_file else None, _FILE: password_file}
    more = urlencode({name: str(value) for name, value in options.items() if value is not None})
    return f"{url}{'&' if '?' in url else '?'}{more}" if more else url


def split_file_options(url: str) -> tuple[str, dict[str, Any]]:
    """(URL without our own options, arguments for the client that they stand for)."""
    where, mark, query = url.partition("?")
    given = parse_qsl(query, keep_blank_values=True) if mark and f"{_FILE}=" in query else []
    if not given:
        return url, {}
    ours = {name: value for name, value in given if name in (_FILE, _USER)}
    rest = urlencode([(name, value) for name, value in given if name not in ours])
    provider = _FileCredentials(Path(ours.get(_FILE, "")), ours.get(_USER))
    return f"{where}?{rest}" if rest else where, {"credential_provider": provider}
