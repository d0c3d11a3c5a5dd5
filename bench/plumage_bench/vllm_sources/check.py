"""Checks whether another version of vLLM has what Plumage hooks. Its sources are read, and no code of it runs.

    python -m plumage_bench.vllm_sources VERSION | WHEEL | FOLDER

The modules in `compat` folders and `reads` import names of vLLM and have tables (`Surface`, `Live`, `Read`, `Made`):
classes with the members that Plumage calls, overrides, reads or passes. The check reads these tables, the imports, and
the calls of vLLM's functions and constructors (`calls`) from Plumage's sources. It looks them up in vLLM's sources: in
the classes, their base classes in vLLM, and modules that re-export names. It reports everything that was renamed or
moved, lost a parameter or requires another one, and each table that it can not read.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeGuard

import plumage_engine
from plumage.errors import ConfigurationError
from plumage_bench.vllm_sources.calls import Call, calls, known_names, refusals
from plumage_bench.vllm_sources.tree import Class, Sources, defined, homes

__all__ = ["OURS", "main", "moved", "table_files", "tables"]

_LAB = Path(__file__).parents[1]
OURS = (Path(plumage_engine.__file__).parent / "vllm", _LAB / "virtual_gpu", _LAB / "vllm_sources")
"""Folders of modules that depend on vLLM: the plugin, the virtual GPU, and `reads`."""
_COMPAT, _READS = "compat", "reads.py"
_TABLES, _MADE = ("Surface", "Live", "Read"), "Made"
_KINDS = "Surface, Live, Read or Made"
_DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


def moved(sources: Sources, *folders: Path) -> list[str]:
    """What the modules under `folders`, or `OURS`, need and `sources` lacks, in words."""
    return [line for folder in folders or OURS for line in _moved(sources, folder)]


def _moved(sources: Sources, ours: Path) -> list[str]:
    lines: list[str] = []
    for file in sorted(ours.rglob("*.py")):
        tree, name = ast.parse(file.read_text(encoding="utf-8")), file.relative_to(ours).as_posix()
        imported, known = homes(tree), known_names(tree, ours / _COMPAT)
        found = [f"{module} has no {one}" for module, one in imported.values() if not sources.has(module, one)]
        if imported and _holds_tables(file):
            found += _check(tree, imported, sources)
        made = (one for one in calls(tree, known) if sources.has(one.module, one.name))
        found += (line for call in dict.fromkeys(made) for line in refusals(call, sources))
        lines += (f"{name}: {line}" for line in dict.fromkeys(found))
    return lines


def _holds_tables(file: Path) -> bool:
    return file.parent.name == _COMPAT or file.name == _READS


def table_files() -> list[Path]:
    """The modules of `OURS` with tables."""
    return [file for folder in OURS for file in sorted(folder.rglob("*.py")) if _holds_tables(file)]


def tables() -> list[tuple[str, list[str]]]:
    """(class, members) of all tables in `table_files` but `Made`. ValueError for one that can't be read."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in table_files()]
    return [entry for tree in trees for node in tree.body if _is_table(node) for entry in _members(node)]


def _check(tree: ast.Module, imported: Mapping[str, tuple[str, str]], sources: Sources) -> Iterator[str]:
    """Whether everything in the tables exists. An unreadable table would count as checked, so it is reported."""
    for node in tree.body:
        if not _is_table(node, _MADE):
            if unread := _looks_like_one(node):
                yield f"{unread} is no table that can be read: annotate it as {_KINDS}"
            continue
        try:
            members = list(_members(node))
        except ValueError as error:
            yield f"a table in line {node.lineno} can't be read: {error}"
            continue
        for owner, names in members:
            if owner not in imported:
                yield f"{owner}, in a table, is not imported from vLLM"
            elif sources.has(*imported[owner]) and ast.unparse(node.annotation) == _MADE:
                yield from refusals(Call(*imported[owner], 0, frozenset(names), more=False), sources)
            elif sources.has(*imported[owner]):
                yield from _complaints(sources, *imported[owner], names)


def _is_table(node: ast.stmt, *others: str) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) in (*_TABLES, *others)


def _looks_like_one(node: ast.stmt) -> str:
    """A constant with names, other than `__all__`."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, _DISPLAYS):
        return ""
    return next((name for name in defined(node) if name != "__all__"), "")


def _members(table: ast.AnnAssign) -> Iterator[tuple[str, list[str]]]:
    """(class, members) of a table. ValueError if it is not a literal."""
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


def _complaint(lineage: Sequence[Class], called: str, wanted: set[str]) -> str:
    if not any(called in one.members or called in one.fields for one in lineage) and called != "__init__":
        return f" has no {called}"
    gone = sorted(wanted - _parameters(lineage, called)) if wanted else []
    return f".{called} takes no {', '.join(gone)}" if gone else ""


def _parameters(lineage: Sequence[Class], called: str) -> frozenset[str]:
    """Of the method that is found first. A class with fields and without its own `__init__` has its fields as
    parameters."""
    for one in lineage:
        if called in one.members:
            return one.members[called] or frozenset()
        if called == "__init__" and one.fields:
            return frozenset().union(*(each.fields for each in lineage))
    return frozenset()


# -- the command -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """0: everything exists. 1: something moved, one line for each name. 2: there were no sources."""
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
    """The folder with the sources: `what` itself, or the Python files of a wheel."""
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
