"""A half-written key file changes nothing; a complete one counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plumage.errors import ConfigurationError
from plumage.settings.router_config import AuthConfig
from plumage_router.http.auth import Auth
from plumage_router.process.secret_file import SecretFile


class _Keys:
    def __init__(self, file: Path, text: str = "acme key-of-acme\nbeta key-of-beta\n") -> None:
        self.file = file
        file.write_text(text)
        self.auth = Auth(AuthConfig(api_keys_file=file))

    def checks(self, count: int = 2) -> None:
        for _ in range(count):
            self.auth.refresh()

    def tenant(self, key: str) -> str | None:
        found = self.auth.tenant({b"authorization": b"Bearer " + key.encode()})
        return found.name if found is not None else None


@pytest.fixture
def keys(tmp_path: Path) -> _Keys:
    return _Keys(tmp_path / "keys")


@pytest.mark.parametrize("text", ["", "\n\n", "# all keys are gone\n", "acme key-of-ac", "acme new-key\nbeta key-of-b"])
def test_half_written_file_changes_nothing(keys: _Keys, text: str, caplog: pytest.LogCaptureFixture) -> None:
    keys.file.write_text(text)
    keys.checks(4)
    assert (keys.tenant("key-of-acme"), keys.tenant("key-of-beta")) == ("acme", "beta")
    assert [keys.tenant(key) for key in ("key-of-ac", "key-of-b", "new-key")] == [None, None, None]
    assert keys.auth.error is not None
    assert len(caplog.records) == 1, "it is logged once, not at each check"
    assert "key-of" not in caplog.text


def test_complete_file_counts(keys: _Keys) -> None:
    keys.file.write_text("acme new-k")
    keys.checks()
    keys.file.write_text("acme new-key\n")
    keys.checks()
    assert (keys.tenant("new-key"), keys.tenant("new-k"), keys.tenant("key-of-acme")) == ("acme", None, None)
    assert keys.auth.error is None


def test_changing_file_is_not_read(keys: _Keys) -> None:
    """Cut at the end of a line it seems complete, and lacks tenants."""
    keys.file.write_text("acme new-key\n")
    keys.checks(1)
    assert keys.tenant("key-of-beta") == "beta"
    keys.file.write_text("acme new-key\nbeta newer-key\n")
    keys.checks(1)
    assert keys.tenant("key-of-beta") == "beta"
    keys.checks(1)
    assert (keys.tenant("new-key"), keys.tenant("newer-key"), keys.tenant("key-of-beta")) == ("acme", "beta", None)


def test_mounted_secret_counts_at_once(tmp_path: Path) -> None:
    """The kubelet's form: `keys` → `..data/keys`, and `..data` is a link that is replaced in one step."""
    for version, text in (("..1", "acme one"), ("..2", "acme two")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys").symlink_to("..data/keys")
    auth = Auth(AuthConfig(api_keys_file=tmp_path / "keys"))
    (tmp_path / "next").symlink_to("..2")
    os.replace(tmp_path / "next", tmp_path / "..data")
    auth.refresh()
    assert auth.tenant({b"authorization": b"Bearer one"}) is None
    assert auth.tenant({b"authorization": b"Bearer two"}) is not None


def test_returned_file_counts(keys: _Keys, tmp_path: Path) -> None:
    os.rename(keys.file, tmp_path / "elsewhere")
    keys.checks()
    assert keys.tenant("key-of-acme") == "acme"
    assert "cannot read" in str(keys.auth.error)
    os.rename(tmp_path / "elsewhere", keys.file)
    keys.checks()
    assert keys.auth.error is None


@pytest.mark.parametrize("text", ["", "# none\n", "acme key-of-ac"])
def test_half_written_file_prevents_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError):
        _Keys(tmp_path / "keys", text)


def test_half_written_admin_key_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "admin"
    file.write_text("the-admins-key\n")
    auth = Auth(AuthConfig(admin_key_file=file))
    file.write_text("the-adm")
    for _ in range(3):
        auth.refresh()
    assert auth.is_admin({b"x-plumage-admin-key": b"the-admins-key"})
    assert not auth.is_admin({b"x-plumage-admin-key": b"the-adm"})
    assert "line break" in str(auth.error)


def test_endless_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "huge"
    with file.open("wb") as opened:
        opened.truncate(1 << 30)
    with pytest.raises(ConfigurationError, match="16 MiB"):
        SecretFile(file, "keys").read()
