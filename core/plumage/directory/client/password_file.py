"""The password of the directory, read from a file at each connection, so that it can be rotated.

The options of `file_options.py` in the directory's URL name the file and the user.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from plumage.directory.client.file_options import FILE_OPTION, USER_OPTION

__all__ = ["split_file_options"]


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


def split_file_options(url: str) -> tuple[str, dict[str, Any]]:
    """(URL without our own options, arguments for the client that they stand for)."""
    where, mark, query = url.partition("?")
    given = parse_qsl(query, keep_blank_values=True) if mark and f"{FILE_OPTION}=" in query else []
    if not given:
        return url, {}
    ours = {name: value for name, value in given if name in (FILE_OPTION, USER_OPTION)}
    rest = urlencode([(name, value) for name, value in given if name not in ours])
    provider = _FileCredentials(Path(ours.get(FILE_OPTION, "")), ours.get(USER_OPTION))
    return f"{where}?{rest}" if rest else where, {"credential_provider": provider}
