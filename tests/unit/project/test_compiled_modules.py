"""The list of modules that are compiled keeps to what mypyc can compile (decision 0304)."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LISTS = PROJECT["tool"]["plumage"]["compiled"]
COMPILED = [module for modules in LISTS.values() for module in modules]
# Types that are read at runtime, and a decorator that mypyc's protocols lack.
READ_AT_RUNTIME = {"msgspec.Struct", "Struct", "BaseModel", "pydantic.BaseModel", "BaseSettings"}


def file_of(module: str) -> Path:
    top = "router" if module.startswith("plumage_router") else "core"
    return (ROOT / top).joinpath(*module.split(".")).with_suffix(".py")


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {module: ast.parse(file_of(module).read_text()) for module in COMPILED}


@pytest.mark.parametrize("part", LISTS)
def test_list_is_sorted_and_names_each_module_once(part: str) -> None:
    assert sorted(set(LISTS[part])) == LISTS[part]
    assert len(set(COMPILED)) == len(COMPILED)


def test_engines_modules_import_no_package_of_others(trees: dict[str, ast.Module]) -> None:
    """The image of vLLM compiles them without the router's packages."""
    known = {*sys.stdlib_module_names, "plumage"}
    imported = {
        (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for module in LISTS["engine"]
        for node in ast.walk(trees[module])
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= known


def test_no_compiled_module_has_a_coroutine(trees: dict[str, ast.Module]) -> None:
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncWith, ast.AsyncFor)
    found = {name for name, tree in trees.items() if any(isinstance(node, kinds) for node in ast.walk(tree))}
    assert not found, "routers hung with a compiled module of coroutines"


def test_no_compiled_class_is_read_at_runtime(trees: dict[str, ast.Module]) -> None:
    found = {
        f"{name}.{one.name}"
        for name, tree in trees.items()
        for one in classes(tree)
        if READ_AT_RUNTIME & {ast.unparse(base) for base in one.bases}
        or any("runtime_checkable" in ast.unparse(line) for line in one.decorator_list)
    }
    assert not found


def test_no_other_class_derives_from_a_compiled_class(trees: dict[str, ast.Module]) -> None:
    compiled: dict[str, set[str]] = {}
    for name, tree in trees.items():
        for one in classes(tree):
            compiled.setdefault(one.name, set()).add(name)
    kept = {file_of(module) for module in COMPILED}
    found = []
    for package in ("core", "router", "engine", "operator", "cli"):
        for path in (ROOT / package).rglob("*.py"):
            if path in kept:
                continue
            tree = ast.parse(path.read_text())
            imported = {
                alias.asname or alias.name: node.module
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            for one in classes(tree):
                for base in one.bases:
                    name = ast.unparse(base).partition("[")[0]
                    package = imported.get(name) or "nowhere"  # a package passes on what its modules have
                    if any(module == package or module.startswith(f"{package}.") for module in compiled.get(name, ())):
                        found.append(f"{path.relative_to(ROOT)}: {one.name}({name})")
    assert not found, "Python can not derive from a compiled class"
