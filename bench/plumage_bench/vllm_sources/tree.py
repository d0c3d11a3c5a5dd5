"""Python sources that are read and not run: where vLLM defines a name, the members of its classes, and Plumage's
imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from plumage.errors import ConfigurationError

__all__ = ["Class", "Sources", "defined", "homes"]

_MOST_HOPS = 12  # most modules that re-export a name, or base classes of a class
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Class:
    """node: its definition. members: by name the parameters of a method; None for other members. fields: of a dataclass
    or a struct."""

    module: str
    node: ast.ClassDef
    members: dict[str, frozenset[str] | None] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
    bases: list[str] = field(default_factory=list)


class Sources:
    """vLLM's sources in a folder that contains the package `vllm`."""

    def __init__(self, root: Path) -> None:
        if not (root / "vllm" / "__init__.py").is_file():
            raise ConfigurationError(f"{root} holds no package vllm: give a version, a wheel, or such a folder")
        self._root = root
        self.tree = cache(self._parse)

    def has(self, module: str, name: str) -> bool:
        """Whether `module` defines or re-exports `name`."""
        tree = self.tree(module)
        return tree is not None and any(name in defined(node) for node in _statements(tree))

    def look_up(self, module: str, name: str) -> Class | None:
        """The class `name` in `module`; None if it is not found."""
        home, node = self.find(module, name) or ("", None)
        return _read(node, home) if isinstance(node, ast.ClassDef) else None

    def find(self, module: str, name: str, hops: int = _MOST_HOPS) -> tuple[str, ast.ClassDef | _Function] | None:
        """The class or function `name` in `module`, and the module that defines it; None if there is none."""
        tree = self.tree(module)
        for node in _statements(tree) if tree is not None and hops else ():
            if isinstance(node, ast.ClassDef | _Function) and node.name == name and not _is_overload(node):
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name) and (source := _absolute(node, module)):
                        return self.find(source, alias.name, hops - 1)
        return None

    def lineage(self, found: Class, hops: int = _MOST_HOPS) -> Iterator[Class]:
        """The class and its base classes in vLLM."""
        yield found
        for base in found.bases if hops else ():
            above = self.look_up(found.module, base)
            if above is not None:
                yield from self.lineage(above, hops - 1)

    def _parse(self, module: str) -> ast.Module | None:
        path = self._root.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"))
        return None


def homes(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """For each name that is imported from vLLM, by its name here: its module and its name there."""
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "vllm"
        for alias in node.names
    }


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of the module, also those inside conditions."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.stmt) and inner is not node)


def defined(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.ClassDef | _Function):
        return {node.name}
    if isinstance(node, ast.ImportFrom | ast.Import):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _read(node: ast.ClassDef, module: str) -> Class:
    found = Class(module, node, bases=[ast.unparse(base).split("[")[0] for base in node.bases])
    for part in node.body:
        if isinstance(part, _Function):
            arguments = part.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            found.members[part.name] = frozenset(one.arg for one in every)
            found.members.update(dict.fromkeys(_set_on_self(part)))
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            names = defined(part)
            found.members.update(dict.fromkeys(names))
            found.fields.update(names if isinstance(part, ast.AnnAssign) else ())
    return found


def _set_on_self(method: _Function) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _absolute(node: ast.ImportFrom, module: str) -> str:
    """The module that an import names. A relative import is resolved as in a module, not as in a package's
    `__init__`."""
    if not node.level:
        return node.module or ""
    return ".".join([*module.split(".")[: -node.level], *([node.module] if node.module else [])])


def _is_overload(node: ast.ClassDef | _Function) -> bool:
    return any(ast.unparse(one).endswith("overload") for one in node.decorator_list)
