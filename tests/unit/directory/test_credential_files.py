"""Password and authority in files: never in the URL, and read again at each connection by every kind of client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.certificates import Authority
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection
from redis.exceptions import AuthenticationError

from plumage.directory.client.connection import connect, redacted
from plumage.directory.client.credential_files import split_file_options
from plumage.directory.client.file_options import with_file_options


@pytest.mark.parametrize(
    "url", ["redis://h:1/2", "redis://h:1/2?health_check_interval=3", "redis+sentinel://h:1,i:2/name", "unix:///s.sock"]
)
def test_client_reads_the_file_at_each_connection(url: str, tmp_path: Path) -> None:
    secret = tmp_path / "a b"
    whole = with_file_options(url, "plumage", secret, None)
    plain, options = split_file_options(whole)
    assert plain == url
    provider = options["credential_provider"]
    for password in ("first", "second\n"):
        secret.write_text(password)
        assert provider.get_credentials() == ("plumage", password.strip())
    assert "second" not in whole
    assert str(secret) not in redacted(whole)
    client = connect(whole)
    assert client.connection_pool.connection_kwargs["credential_provider"] is not None  # type: ignore[union-attr]


def test_default_user_and_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "p"
    _, options = split_file_options(with_file_options("redis://h", None, path, None))
    with pytest.raises(AuthenticationError, match="cannot read the password"):
        options["credential_provider"].get_credentials()
    path.write_text("x")
    assert options["credential_provider"].get_credentials() == ("x",)


def test_url_without_password_file_is_unchanged() -> None:
    assert with_file_options("redis://h?db=1", None, None, None) == "redis://h?db=1"
    assert split_file_options("redis://h?db=1") == ("redis://h?db=1", {})


def connections(client: Any) -> Iterator[Any]:
    """One of each kind that the client would open."""
    manager = getattr(client, "nodes_manager", None)
    if manager is not None:
        found_later = ClusterNode("j", 3, **client.connection_kwargs)
        for node in (*manager.startup_nodes.values(), found_later):
            yield node.connection_class(**node.connection_kwargs)
        return
    pool = client.connection_pool
    yield pool.connection_class(**pool.connection_kwargs)
    for asked in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        yield from connections(asked)


@pytest.mark.parametrize(
    ("url", "kinds"),
    [("rediss://h:1", 1), ("rediss+cluster://h:1,i:2", 3), ("rediss+sentinel://h:1,i:2/name", 3)],
)
def test_current_file_is_trusted(url: str, kinds: int, tmp_path: Path) -> None:
    authorities = [Authority.create("old"), Authority.create("new")]
    authorities[0].write(tmp_path, "ca")
    found = list(connections(connect(f"{url}?ssl_ca_certs={tmp_path / 'ca.crt'}")))
    assert len(found) == kinds
    for name, authority in zip(("old", "new"), authorities, strict=True):
        authority.write(tmp_path, "ca")
        for connection in found:
            assert isinstance(connection, SSLConnection)
            (own,) = [one for one in trusted(connection) if one in ("old", "new")]
            assert own == name


def trusted(connection: Any) -> list[str]:
    listed = connection._connection_arguments()["ssl"].get_ca_certs()
    return [value for one in listed for part in one["subject"] for key, value in part if key == "commonName"]
