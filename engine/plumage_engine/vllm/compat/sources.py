"""`make check-vllm VERSION=…`: is what we hook in another version of vLLM too? Its sources are read, nothing is run.

    python -m plumage_engine.vllm.compat.sources VERSION | WHEEL | FOLDER

Each module of this package imports names of vLLM and holds tables (`Surface`, `Live`, `Read`): classes with the members
that the plugin calls, overrides or reads. Both are read from our own sources, as are the imports of all other modules
of the plugin, and looked up in vLLM's: the classes, what they inherit from other classes of vLLM, and names that a
module only passes on. What was renamed, was moved or lost a parameter is named, and so is a table that can't be read.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeGuard

from plumage.errors import ConfigurationError

__all__ = ["Sources", "main", "moved", "tables"]

_HERE = Path(__file__).parent
_TABLES = ("Surface", "Live", "Read")
_DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)
_MOST_HOPS = 12  # modules through which a name is passed on, or classes above a class


@dataclass(slots=True)
class _Class:
    """members: by name the parameters of a method; None for what is no method. fields: of a dataclass or a struct."""

    module: str
    members: dict[str, frozenset[str] | None] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
    bases: list[str] = field(default_factory=list)


class Sources:
    """vLLM's sources in a folder that holds the package `vllm`."""

    def __init__(self, root: Path) -> None:
        if not (root / "vllm" / "__init__.py").is_file():
            raise ConfigurationError(f"{root} holds no package vllm: give a version, a wheel, or such a folder")
        self._root = root
        self.tree = cache(self._parse)

    def has(self, module: str, name: str) -> bool:
        """Whether `module` defines `name`, or passes it on."""
        tree = self.tree(module)
        return tree is not None and any(name in _defined(node) for node in _statements(tree))

    def look_up(self, module: str, name: str, hops: int = _MOST_HOPS) -> _Class | None:
        """The class called `name` in `module`; None where it can't be found."""
        tree = self.tree(module)
        for node in _statements(tree) if tree is not None and hops else ():
            if isinstance(node, ast.ClassDef) and node.name == name:
                return _read(node, module)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name) and (source := _absolute(node, module)):
                        return self.look_up(source, alias.name, hops - 1)
        return None

    def lineage(self, found: _Class, hops: int = _MOST_HOPS) -> Iterator[_Class]:
        """The class and those of vLLM above it."""
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


def moved(sources: Sources, ours: Path = _HERE.parent) -> list[str]:
    """What the modules under `ours` rely on and `sources` does not have, in words. Tables are in `ours`/compat."""
    lines: list[str] = []
    for file in sorted(ours.rglob("*.py")):
        tree, name = ast.parse(file.read_text(encoding="utf-8")), file.relative_to(ours).as_posix()
        homes = _homes(tree)
        found = [f"{module} has no {one}" for module, one in homes.values() if not sources.has(module, one)]
        if homes and file.parent == ours / _HERE.name:
            found += _check(tree, homes, sources)
        lines += (f"{name}: {line}" for line in found)
    return lines


def tables(ours: Path = _HERE) -> list[tuple[str, list[str]]]:
    """(class, members) of all tables in `ours`. ValueError for one that can't be read."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(ours.glob("*.py"))]
    return [entry for tree in trees for node in tree.body if _is_table(node) for entry in _members(node)]


def _homes(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """By our name of what is imported from vLLM, its module and its name there."""
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "vllm"
        for alias in node.names
    }


def _check(tree: ast.Module, homes: Mapping[str, tuple[str, str]], sources: Sources) -> Iterator[str]:
    """Whether all that the tables name is there. What can't be read would be taken for checked, so it is told."""
    for node in tree.body:
        if not _is_table(node):
            if unread := _looks_like_one(node):
                yield f"{unread} is no table that can be read: annotate it as Surface, Live or Read"
            continue
        try:
            members = list(_members(node))
        except ValueError as error:
            yield f"a table in line {node.lineno} can't be read: {error}"
            continue
        for owner, names in members:
            if owner not in homes:
                yield f"{owner}, in a table, is not imported from vLLM"
            elif sources.has(*homes[owner]):
                yield from _complaints(sources, *homes[owner], names)


def _is_table(node: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) in _TABLES


def _looks_like_one(node: ast.stmt) -> str:
    """The name of a constant that holds names, and is not `__all__`."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, _DISPLAYS):
        return ""
    return next((name for name in _defined(node) if name != "__all__"), "")


def _members(table: ast.AnnAssign) -> Iterator[tuple[str, list[str]]]:
    """(class, members) of a table. ValueError where it is not written out."""
    if not isinstance(table.value, ast.Dict):
        raise ValueError("it is not a dictionary, written out")
    for key, value in zip(table.value.keys, table.value.values, strict=True):
        if not isinstance(key, ast.Name):
            raise ValueError("its keys are not all names of classes")
        names = ast.literal_eval(value)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"the members of {key.id} are no tuple of names")
        yield key.id, list(names)


def _complaints(sources: Sources, module: str, name: str, members: Sequence[str]) -> Iterator[str]:
    found = sources.look_up(module, name)
    if found is None:
        yield f"{module}.{name} is no class that could be read"
        return
    lineage = list(sources.lineage(found))
    for member in members:
        called, _, rest = member.partition("(")
        wanted = {one.strip() for one in rest.rstrip(")").split(",") if one.strip()}
        if complaint := _complaint(lineage, called, wanted):
            yield f"{module}.{name}{complaint}"


def _complaint(lineage: Sequence[_Class], called: str, wanted: set[str]) -> str:
    if not any(called in one.members or called in one.fields for one in lineage) and called != "__init__":
        return f" has no {called}"
    gone = sorted(wanted - _parameters(lineage, called)) if wanted else []
    return f".{called} takes no {', '.join(gone)}" if gone else ""


def _parameters(lineage: Sequence[_Class], called: str) -> frozenset[str]:
    """Of the method that is found first. A class with fields and no `__init__` of its own is made of its fields."""
    for one in lineage:
        if called in one.members:
            return one.members[called] or frozenset()
        if called == "__init__" and one.fields:
            return frozenset().union(*(each.fields for each in lineage))
    return frozenset()


# -- reading Python ----------------------------------------------------------------------------------------------------


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those of the module, and those inside its conditions."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.stmt) and inner is not node)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.ImportFrom | ast.Import):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _read(node: ast.ClassDef, module: str) -> _Class:
    found = _Class(module, bases=[ast.unparse(base).split("[")[0] for base in node.bases])
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = part.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            found.members[part.name] = frozenset(one.arg for one in every)
            found.members.update(dict.fromkeys(_set_on_self(part)))
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            names = _defined(part)
            found.members.update(dict.fromkeys(names))
            found.fields.update(names if isinstance(part, ast.AnnAssign) else ())
    return found


def _set_on_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _absolute(node: ast.ImportFrom, module: str) -> str:
    """The module that an import names; a relative one is taken as written in a module, not in a package's own."""
    if not node.level:
        return node.module or ""
    return ".".join([*module.split(".")[: -node.level], *([node.module] if node.module else [])])


# -- the command -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all is there; 1: something moved, named line by line; 2: there was nothing to read."""
    parser = argparse.ArgumentParser(prog="check-vllm", description=__doc__.split("\n")[0])
    parser.add_argument("what", help="a version such as 0.33.0, a wheel, or a folder that holds the package vllm")
    what = parser.parse_args(arguments).what
    try:
        with TemporaryDirectory() as folder:
            lines = moved(Sources(_unpacked(what, Path(folder))))
    except (ConfigurationError, OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"check-vllm: {error}\n")
        return 2
    sys.stdout.write("".join(f"{line}\n" for line in lines) or f"check-vllm: {what} has all that the plugin hooks\n")
    return 1 if lines else 0


def _unpacked(what: str, folder: Path) -> Path:
    """The folder to read: `what` itself, or the Python files of a wheel."""
    given = Path(what)
    if given.is_dir():
        return given
    wheel = given if given.suffix == ".whl" else _downloaded(what, folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    return folder


def _downloaded(version: str, folder: Path) -> Path:
    sys.stderr.write(f"check-vllm: downloading vllm {version}, some 500 MB\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
    ]
    subprocess.run([*pip, f"vllm=={version}"], check=True, timeout=1800)
    return next(folder.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main())
