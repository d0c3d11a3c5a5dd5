"""The pure ring does no I/O, except where the architecture says so.

The import linter checks imports. This file checks packages that its configuration does not list, and built-in
functions.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "plumage"
DOES_IO = {"directory", "incluster"}  # they connect to Redis and to the API server
EXCEPTIONS = {
    *("plumage.models", "plumage.rendering.folder"),  # read a model's folder, at start
    *(
        "plumage.settings.*",
        "plumage.incluster.config",
        "plumage.directory.client.file_options",
    ),  # have paths as values
}
BUILT_IN = {"open", "input", "print", "breakpoint"}


def contract() -> dict[str, list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (found,) = (one for one in settings["contracts"] if one["name"] == "the pure ring does no I/O")
    return found


def test_every_package_of_core_is_in_the_contract() -> None:
    parts = {path.parent.name for path in CORE.glob("*/__init__.py")} | {path.stem for path in CORE.glob("[!_]*.py")}
    assert set(contract()["source_modules"]) == {f"plumage.{name}" for name in parts - DOES_IO}


def test_exceptions_are_those_of_the_architecture() -> None:
    allowed = {line.partition(" -> ")[0] for line in contract()["ignore_imports"]}
    assert allowed == EXCEPTIONS
    architecture = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    assert all(f"`{module}`" in architecture for module in allowed)


def test_pure_modules_open_no_file_and_print_nothing() -> None:
    pure = [path for path in CORE.rglob("*.py") if path.relative_to(CORE).parts[0].removesuffix(".py") not in DOES_IO]
    called = {
        f"{path.relative_to(CORE)}:{node.lineno} {node.func.id}"
        for path in pure
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILT_IN
    }
    assert len(pure) > 50
    assert called == set()
