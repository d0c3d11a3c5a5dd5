"""Checks that vLLM's functions and constructors still accept the arguments that the plugin passes, and require no
others.

The calls are read from Plumage's sources, so no table of them can be incomplete. They are calls of names that a module
imports from vLLM or through `compat`, of Plumage's classes that inherit `__init__` from vLLM's, and of
`super().__init__`. Methods are in the tables. Constructors that get their arguments by ** are in the tables called
`Made`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plumage_bench.vllm_sources.tree import Class, Sources, homes

__all__ = ["Call", "calls", "known_names", "refusals"]

_INIT = "__init__"
_OF_FIELDS = ("NamedTuple", "Struct")
_TAKE_NOTHING = ("ABC", "Generic", "Protocol", "object")


@dataclass(frozen=True, slots=True)
class Call:
    """module, name: the called name in vLLM. placed: positional arguments. more: there are further ones by *, which the
    source does not show. Arguments by ** are ignored, since they are unknown."""

    module: str
    name: str
    placed: int
    named: frozenset[str]
    more: bool


@dataclass(slots=True)
class _Takes:
    """placed: positional parameters. others: keyword-only ones. wanted: those without a default."""

    placed: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    any_placed: bool = False
    any_named: bool = False


def known_names(tree: ast.Module, compat: Path) -> dict[str, tuple[str, str]]:
    """For each name in a module of Plumage that comes from vLLM, its (module, name) there. It may be imported from vLLM
    or from one of the modules in the folder `compat`."""
    known = homes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (parts := (node.module or "").split("."))[-2:-1] == [compat.name]:
            file = compat / f"{parts[-1]}.py"
            passed = homes(ast.parse(file.read_text(encoding="utf-8"))) if file.is_file() else {}
            known |= {one.asname or one.name: passed[one.name] for one in node.names if one.name in passed}
    return known


def calls(tree: ast.Module, known: Mapping[str, tuple[str, str]]) -> Iterator[Call]:
    """Calls of vLLM's functions and constructors in a module. `known`: its names from vLLM."""
    meant = dict(known)
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.bases):
        base = known.get(ast.unparse(node.bases[0]))
        if base is not None:
            yield from (_call(inner, base) for inner in ast.walk(node) if _is_super_init(inner))
            if not any(isinstance(part, ast.FunctionDef) and part.name == _INIT for part in node.body):
                meant[node.name] = base
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id in meant:
            yield _call(inner, meant[inner.func.id])


def refusals(call: Call, sources: Sources) -> Iterator[str]:
    """The reasons why vLLM would not accept the call."""
    home, node = sources.find(call.module, call.name) or ("", None)
    what = f"{call.module}.{call.name}"
    if node is None:
        yield f"{what} is no function and no class that could be read"
    elif not isinstance(node, ast.ClassDef):
        yield from _mistakes(what, _of_function(node), call)
    elif (found := sources.look_up(home, node.name)) and (takes := _of_class(found, sources)):
        yield from _mistakes(f"{what}.{_INIT}", takes, call)


def _mistakes(what: str, takes: _Takes, call: Call) -> Iterator[str]:
    filled = set(takes.placed[: call.placed])
    if call.placed > len(takes.placed) and not takes.any_placed:
        yield f"{what} takes {len(takes.placed)} in order, and {call.placed} are passed"
    if gone := sorted(call.named - {*takes.placed, *takes.others}) if not takes.any_named else []:
        yield f"{what} takes no {', '.join(gone)}"
    if twice := sorted(filled & call.named):
        yield f"{what} has {', '.join(twice)} at another place"
    if not call.more and (left := sorted(takes.wanted - filled - call.named)):
        yield f"{what} wants {', '.join(left)}"


# -- arguments ---------------------------------------------------------------------------------------------------------


def _is_super_init(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"super().{_INIT}"


def _call(node: ast.AST, home: tuple[str, str]) -> Call:
    assert isinstance(node, ast.Call)
    placed = [one for one in node.args if not isinstance(one, ast.Starred)]
    named = frozenset(one.arg for one in node.keywords if one.arg is not None)
    return Call(*home, len(placed), named, more=len(placed) < len(node.args))


# -- parameters --------------------------------------------------------------------------------------------------------


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool = False) -> _Takes:
    given = node.args
    placed = [one.arg for one in (*given.posonlyargs, *given.args)]
    wanted = placed[int(bound) : len(placed) - len(given.defaults)]
    others = {one.arg: default for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    wanted += (name for name, default in others.items() if default is None)
    return _Takes(placed[int(bound) :], set(others), set(wanted), given.vararg is not None, given.kwarg is not None)


def _of_class(found: Class, sources: Sources) -> _Takes | None:
    """The parameters of the constructor that is found first. None if another library defines it, which is not read."""
    lineage = list(sources.lineage(found))
    for one in lineage:
        for part in one.node.body:
            if isinstance(part, ast.FunctionDef) and part.name == _INIT:
                return _of_function(part, bound=True)
        if _has_fields(one, sources):
            return _of_fields(list(sources.lineage(one)), sources)
    foreign = (base for one in lineage for base in one.bases if sources.look_up(one.module, base) is None)
    return _Takes() if all(base.split(".")[-1] in _TAKE_NOTHING for base in foreign) else None


def _has_fields(one: Class, sources: Sources) -> bool:
    """Whether it is a dataclass, a msgspec struct or a named tuple."""
    if any("dataclass" in ast.unparse(each) for each in one.node.decorator_list):
        return True
    return any(base.split(".")[-1] in _OF_FIELDS for each in sources.lineage(one) for base in each.bases)


def _of_fields(lineage: Sequence[Class], sources: Sources) -> _Takes:
    """The fields of base classes come first. A field that is defined again keeps its place."""
    takes, found = _Takes(), dict[str, tuple[bool, bool]]()
    for one in reversed(lineage):
        if _has_fields(one, sources):
            found.update(_fields(one.node))
    for name, (by_name, wanted) in found.items():
        if by_name:
            takes.others.add(name)
        else:
            takes.placed.append(name)
        if wanted:
            takes.wanted.add(name)
    return takes


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, tuple[bool, bool]]]:
    """For each field by name: whether it is keyword-only, and whether it has no default."""
    options = [*node.keywords, *(one for each in node.decorator_list for one in _keywords(each))]
    only = _is(options, "kw_only", True)
    for part in node.body:
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        kind, keywords = ast.unparse(part.annotation), _keywords(part.value)
        only = only or kind.endswith("KW_ONLY")
        if not kind.endswith("KW_ONLY") and "ClassVar" not in kind and not _is(keywords, "init", False):
            bare = part.value is None or _is_bare_field(part.value)
            yield part.target.id, (only or _is(keywords, "kw_only", True), bare)


def _is_bare_field(value: ast.expr) -> bool:
    """Whether a value is `field(…)` without a default."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func).split(".")[-1] != "field":
        return False
    return not any(one.arg in ("default", "default_factory") for one in value.keywords)


def _keywords(node: ast.AST | None) -> Sequence[ast.keyword]:
    return node.keywords if isinstance(node, ast.Call) else ()


def _is(options: Sequence[ast.keyword], name: str, value: bool) -> bool:
    return any(one.arg == name and isinstance(one.value, ast.Constant) and one.value.value is value for one in options)
