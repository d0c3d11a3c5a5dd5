"""The engine keys of a pool during a change, and the salts of its tenants."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from plumage.errors import ConfigurationError
from plumage_router.fleet.engine_keys import EngineKeys, Salts, SecretLine
from plumage_router.http.auth import Tenant

OLD, NEW = b"old", b"new"


def test_engine_gets_the_key_it_accepted_last() -> None:
    keys = EngineKeys()
    keys.use(NEW, OLD)
    assert keys.of("a") == NEW
    assert keys.refused("a", [NEW]) == OLD
    assert (keys.of("a"), keys.of("b")) == (OLD, NEW)
    assert keys.refused("a", [OLD]) == NEW, "it was restarted"
    assert keys.of("a") == NEW
    assert keys.refused("a", [NEW, OLD]) is None


def test_previous_key_is_kept_without_file() -> None:
    keys = EngineKeys()
    keys.use(OLD)
    keys.use(NEW)
    assert keys.all == (NEW, OLD)
    keys.use(NEW, OLD)
    assert keys.all == (NEW, OLD)
    keys.use(None)
    assert keys.all == (NEW,), "engines may require it until they restart"


def test_concurrent_refusals_end_with_one_key() -> None:
    keys = EngineKeys()
    keys.use(NEW, OLD)
    assert [keys.refused("a", [NEW]), keys.refused("a", [NEW])] == [OLD, OLD]
    assert keys.of("a") == OLD


def test_salt_needs_the_secret_key() -> None:
    salts, others = Salts(), Salts()
    salts.use(b"k1")
    others.use(b"k2")
    acme, beta = Tenant("acme"), Tenant("beta")
    assert salts.of(acme) == salts.of(Tenant("acme")) != salts.of(beta)
    assert salts.of(acme) != others.of(acme), "pools differ"
    by_name = hashlib.sha256(b"plumage tenant salt\0acme").digest()[:18]
    assert salts.of(acme) != urlsafe_b64encode(by_name).decode()
    assert salts.of(Tenant("")) == salts.of(None) == ""
    with pytest.raises(ConfigurationError, match="saltKeyFile"):
        Salts().of(acme)


def test_salt_is_equal_on_all_routers() -> None:
    """A golden value: routers of two versions serve one pool during an upgrade."""
    salts = Salts()
    salts.use(b"secret")
    assert salts.of(Tenant("acme")) == "V0wwWNQ20Dx7j3oyfJcOxN8V"


def test_previous_key_file_may_come_and_go(tmp_path: Path) -> None:
    line = SecretLine(tmp_path / "previous", "a key", needed=False)
    line.read()
    assert (line.value, line.refresh()) == (None, False)
    (tmp_path / "previous").write_text("old\n")
    assert [line.refresh(), line.refresh(), line.refresh()] == [False, True, False]
    assert line.value == b"old"
    (tmp_path / "previous").unlink()
    assert (line.refresh(), line.value, line.error) == (True, None, None)


def test_deleted_secret_stays_in_force(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    line = SecretLine(file, "a key")
    line.read()
    file.unlink()
    assert (line.refresh(), line.value) == (False, b"secret")
    assert "cannot read a key" in str(line.error)
