"""Classes by import path: refused paths and their messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plumage.errors import ConfigurationError
from plumage.import_path import is_import_path, load_class

METHODS = ("insert", "victim")


def test_name_with_a_colon_is_an_import_path() -> None:
    assert is_import_path("my_package.policies:Mine")
    assert not is_import_path("Lbgr")


def test_class_is_imported() -> None:
    from plumage.eviction.lru import Lru

    assert load_class("plumage.eviction.lru:Lru", "eviction policy", METHODS) is Lru


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":Lru", "write package.module:Class"),
        ("plumage.eviction.lru:", "write package.module:Class"),
        ("plumage.eviction.lru:Lru.victim", "write package.module:Class"),
        (".lru:Lru", "write package.module:Class"),
        ("../lru:Lru", "write package.module:Class"),
        ("plumage.no_such_module:Lru", "can't be imported: ModuleNotFoundError"),
        ("plumage.eviction.lru:Mru", "plumage.eviction.lru has no class Mru"),
        ("plumage.import_path:load_class", "has no class load_class"),
        ("plumage.errors:StateError", "lacks insert, victim"),
    ],
)
def test_impossible_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_class(name, "eviction policy", METHODS)


def test_failing_module_is_reported_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="'fails_at_import:Mine' can't be imported: ZeroDivisionError"):
        load_class("fails_at_import:Mine", "eviction policy", METHODS)
    assert "fails_at_import" not in sys.modules
