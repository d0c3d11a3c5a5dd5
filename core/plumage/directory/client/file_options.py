"""Two options of our own in the directory's URL, which name the file with the password and the user.

They are `password_file=/path` and `password_user=name`. Everything that accepts a URL accepts them, and the URL has no
secret in it. `credential_files.py` reads the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlencode

__all__ = ["FILE_OPTION", "USER_OPTION", "with_file_options"]

FILE_OPTION: Final = "password_file"
USER_OPTION: Final = "password_user"


def with_file_options(url: str, user: str | None, password_file: Path | None, ca_file: Path | None) -> str:
    """The URL with options for the files that a configuration names; unchanged if it names none."""
    options = {"ssl_ca_certs": ca_file, USER_OPTION: user if password_file else None, FILE_OPTION: password_file}
    more = urlencode({name: str(value) for name, value in options.items() if value is not None})
    return f"{url}{'&' if '?' in url else '?'}{more}" if more else url
