"""A password in a file: never in the URL, and read again at each connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.exceptions import AuthenticationError

from plumage.directory.client.connection import connect, redacted
from plumage.directory.client.file_options import with_file_options
from plumage.directory.client.password_file import split_file_options


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
