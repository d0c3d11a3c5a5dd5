"""No modules and no packages import one another in a circle, not even under TYPE_CHECKING or inside a function.

Import contracts name the packages that they compare. This test compares all, and counts every import statement.
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PRODUCT = ("plumage", "plumage_router", "plumage_engine", "plumage_operator", "plumage_cli")


def find_cycle(*packages: str) -> list[str]:
    """Modules or packages of one cycle, each importing the one before it; empty if there is none."""
    graph = grimp.build_graph(*packages, cache_dir=None, exclude_type_checking_imports=False)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    for importer, imported in [(one, other) for one, others in imports.items() for other in others]:
        siblings = _siblings(importer, imported)
        if siblings is not None:
            imports.setdefault(siblings[0], set()).add(siblings[1])
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _siblings(one: str, other: str) -> tuple[str, str] | None:
    """The two packages or modules of one parent that contain the modules; None if one module contains the other."""
    ones, others = one.split("."), other.split(".")
    for depth, (name, another) in enumerate(zip(ones, others, strict=False), start=1):
        if name != another:
            return ".".join(ones[:depth]), ".".join(others[:depth])
    return None


def test_product_has_no_import_cycle() -> None:
    assert find_cycle(*PRODUCT) == []


@pytest.mark.parametrize(
    "hidden",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted.first import First\n",
        "def make():\n    from planted.first import First\n    return First()\n",
        "import planted.first\n",
    ],
    ids=["type checking", "lazy", "plain"],
)
def test_hidden_import_that_closes_a_cycle_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text("import planted.second\n\nclass First: ...\n")
    (package / "second.py").write_text(hidden)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    assert {*find_cycle("planted")} == {"planted.first", "planted.second"}


def test_cycle_of_two_packages_without_a_cycle_of_modules_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, imported in (("low", "planted.high.b"), ("high", "planted.low.b")):
        folder = tmp_path / "planted" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "a.py").write_text(f"import {imported}\n")
        (folder / "b.py").touch()
    (tmp_path / "planted" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {*find_cycle("planted")} == {"planted.low", "planted.high"}
