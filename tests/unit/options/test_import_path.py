"""Classes by import path: what is refused, and with which words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plumage.errors import ConfigurationError
from plumage.import_path import is_import_path, load_class

METHODS = ("insert", "victim")


def test_a_name_with_a_colon_is_an_import_path() -> None:
    assert is_import_path("my_package.policies:Mine")
    assert not is_import_path("Lbgr")


def test_the_class_is_imported() -> None:
    from plumage.eviction.lru import Lru

    assert load_class("plumage.eviction.lru:Lru", "eviction policy", METHODS) is Lru


@pytest.mark.parametrize(
    ("name", "told"),
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
def test_a_name_that_can_not_work_is_refused(name: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        load_class(name, "eviction policy", METHODS)


def test_a_module_that_fails_is_named_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="'fails_at_import:Mine' can't be imported: ZeroDivisionError"):
        load_class("fails_at_import:Mine", "eviction policy", METHODS)
    assert "fails_at_import" not in sys.modules
