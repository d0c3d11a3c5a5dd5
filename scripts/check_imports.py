"""Find modules that import the `__init__` of a package around them: `python scripts/check_imports.py`, for `make lint`.

Such a module and the `__init__` that imports it are a cycle, which import-linter's contracts for siblings do not see:
they count the import as one of the package, not of a sibling. `from package import module` names a sibling and passes.
Imports inside of functions and under `TYPE_CHECKING` count too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "core/plumage",
    "router/plumage_router",
    "engine/plumage_engine",
    "operator/plumage_operator",
    "cli/plumage_cli",
    "bench/plumage_bench",
)


def findings(root: Path = ROOT) -> list[str]:
    """`file:line: package` for each import of a package around the file whose `__init__` imports modules of its own."""
    return [f"{file.relative_to(root)}:{line}: {name}" for file, line, name in _circles(root)]


def _circles(root: Path) -> Iterator[tuple[Path, int, str]]:
    for package in PACKAGES:
        top = root / package
        for file in sorted(top.rglob("*.py")):
            around = {_dotted(folder, top): folder for folder in file.parents if folder.is_relative_to(top)}
            if file.name == "__init__.py":
                around.pop(_dotted(file.parent, top))
            for line, name in _imported(file):
                if name in around and _imports_its_own(around[name], name):
                    yield file, line, name


def _imported(file: Path) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of each import of a file: of the modules and, beside them, of their names."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            folder = _folder_of(node.module, file)
            if folder is None or any(not _is_module(folder / alias.name) for alias in node.names):
                yield node.lineno, node.module


def _imports_its_own(folder: Path, name: str) -> bool:
    """Whether the `__init__` of a package imports a module of that package."""
    for node in ast.walk(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        if any(one == name or one.startswith(f"{name}.") for one in names):
            return True
    return False


def _folder_of(module: str, file: Path) -> Path | None:
    """The folder of a package around a file, by its dotted name; None if it is another module."""
    for folder in file.parents:
        if folder.parts[-len(module.split(".")) :] == tuple(module.split(".")) and (folder / "__init__.py").exists():
            return folder
    return None


def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def _dotted(folder: Path, top: Path) -> str:
    return ".".join((top.name, *folder.relative_to(top).parts))


if __name__ == "__main__":
    wrong = findings()
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(f"{len(wrong)} imports of a package by its own module: import the module that has the name")
