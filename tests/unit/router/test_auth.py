"""Key files: keys, tenants, comments, and refused lines."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from plumage.errors import ConfigurationError
from plumage.settings.router_config import AuthConfig
from plumage_router.http.auth import Auth


def _auth(folder: Path, text: str) -> Auth:
    file = folder / "keys"
    file.write_text(text)
    return Auth(AuthConfig(api_keys_file=file))


def _tenant(auth: Auth, key: str) -> str | None:
    tenant = auth.tenant({b"authorization": b"Bearer " + key.encode()})
    return tenant.name if tenant is not None else None


def test_tenant_of_a_key_alone_is_named_by_its_sha256(tmp_path: Path) -> None:
    """The name is in quotas, bills and salts, so it must never change."""
    assert _tenant(_auth(tmp_path, "sk-alone\n"), "sk-alone") == hashlib.sha256(b"sk-alone").hexdigest()[:12]


def test_key_may_contain_a_hash(tmp_path: Path) -> None:
    auth = _auth(tmp_path, "acme sk-ab#cdef\nother k#\n")
    assert _tenant(auth, "sk-ab#cdef") == "acme"
    assert _tenant(auth, "sk-ab") is None
    assert _tenant(auth, "k#") == "other"


@pytest.mark.parametrize("comment", ["# none", "#none", "#", "  # acme k2", "acme k1 # its key", "acme k1\t#k2", ""])
def test_keys_file_ignores_comments(tmp_path: Path, comment: str) -> None:
    auth = _auth(tmp_path, f"{comment}\nbeta k3\n")
    assert _tenant(auth, "k1") == ("acme" if "k1" in comment else None)
    assert _tenant(auth, "k3") == "beta"
    for key in ("#", "none", "k2", "#k2", "key"):
        assert _tenant(auth, key) is None


@pytest.mark.parametrize("second", ["acme secret", "beta secret", "secret", "beta secret # again"])
def test_keys_file_refuses_duplicate_key_without_showing_it(tmp_path: Path, second: str) -> None:
    with pytest.raises(ConfigurationError, match="line 3: this key") as refused:
        _auth(tmp_path, f"acme secret\n# more\n{second}\n")
    assert "secret" not in str(refused.value)
