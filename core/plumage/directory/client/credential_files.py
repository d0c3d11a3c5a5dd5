"""The directory's password and its certificate authority, read from files at each connection: both can be rotated.

The options of `file_options.py` in the directory's URL name the files and the user. redis-py makes the TLS settings of
a connection once, and its pools open the same connection again. Without `reload_ca_file` a client would refuse a new
authority until its process restarts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from redis.asyncio import RedisCluster
from redis.asyncio.connection import SSLConnection
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from plumage.directory.client.file_options import FILE_OPTION, USER_OPTION

__all__ = ["reload_ca_file", "split_file_options"]


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


def reload_ca_file(client: Any) -> None:
    """Make an unused client read its TLS files at each connection. A client without TLS does not change."""
    if isinstance(client, RedisCluster):
        _reload_in_cluster(client)
        return
    pool = client.connection_pool
    if issubclass(pool.connection_class, SSLConnection):
        pool.connection_class = _reading(pool.connection_class)
    for asked in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        reload_ca_file(asked)


def _reload_in_cluster(client: Any) -> None:
    """Does the same for a Cluster: for its named nodes, and by the settings for nodes that it discovers."""
    kind = client.connection_kwargs.get("connection_class")
    if kind is None or not issubclass(kind, SSLConnection):
        return
    client.connection_kwargs["connection_class"] = _reading(kind)
    for node in client.nodes_manager.startup_nodes.values():
        node.connection_class = _reading(kind)


@cache
def _reading(kind: Any) -> Any:
    class Reading(kind):  # type: ignore[misc]  # untyped upstream
        def _connection_arguments(self) -> Any:
            self.ssl_context.context = None
            return super()._connection_arguments()

    return Reading
