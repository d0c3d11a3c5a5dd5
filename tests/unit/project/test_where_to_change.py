"""CONTRIBUTING's table of common changes: each file is there, and defines the name beside it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| [^|`]+ \| `([^`]+\.py)`[^|]* \| `(\w+)` \|$", re.MULTILINE)


def section() -> str:
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Where to change what\n")
    return rest.partition("\n## ")[0]


def missing(table: str) -> list[str]:
    """The rows without their file, and those whose file does not define the name."""
    return [f"{path}: {name}" for path, name in ROW.findall(table) if name not in defined(ROOT / path)]


def defined(path: Path) -> set[str]:
    """The classes and functions of a module."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    body = ast.parse(path.read_text()).body if path.is_file() else []
    return {node.name for node in body if isinstance(node, kinds)}


def test_twelve_changes_name_a_file_and_what_it_defines() -> None:
    table = section()
    assert len(ROW.findall(table)) == len([line for line in table.splitlines() if line.startswith("| ")]) - 1 == 12
    assert missing(table) == []


def test_moved_file_and_renamed_class_are_found() -> None:
    table = "| a probe | `operator/gone.py` | `_probe` |\n| a test | `tests/conftest.py` | `no_such_name` |\n"
    assert missing(table) == ["operator/gone.py: _probe", "tests/conftest.py: no_such_name"]
