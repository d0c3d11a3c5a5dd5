"""Reads YAML text safely: size, depth and expansion are bounded, and duplicate keys are reported.

The bounds are checked on the parser's events and on the node graph, before any value is built. There an alias costs
nothing, but its expansion ("a billion laughs") could fill the memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from typing import Any

import yaml

from plumage.errors import ManifestError

__all__ = ["MAX_DEPTH", "MAX_DOCUMENTS", "MAX_NODES", "MAX_TEXT", "Document", "read_documents"]

MAX_TEXT = 1_000_000  # characters
MAX_DOCUMENTS = 100
MAX_DEPTH = 64
MAX_NODES = 100_000  # aliases expanded

_MERGE = "tag:yaml.org,2002:merge"
_OPEN = (0, 0)  # a node that is being measured
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Reads numbers as kubectl does, also in the forms of YAML 1.2: `1e3` and `0o17` are numbers, not text."""

    def construct_yaml_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        return int(text, 8) if "0o" in text else int(super().construct_yaml_int(node))

    def construct_yaml_float(self, node: Any) -> float | str:
        """A float. A number that is too large is text, such as the commit `12e4567`."""
        text, number = str(self.construct_scalar(node)), float(super().construct_yaml_float(node))
        return text if isinf(number) and "inf" not in text.lower() else number


_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?0o[0-7]+$"), "-+0")
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a text. Empty documents are left out.

    number: its place in the text, from 1.
    content: the mapping, without nulls, as Kubernetes reads it. None if the document is not a mapping.
    mistakes: duplicate keys (the last one is in `content`), or that the document is not a mapping.
    """

    number: int
    content: dict[str, Any] | None
    mistakes: tuple[str, ...] = ()


def read_documents(text: str, source: str) -> list[Document]:
    """The documents in `text`. ManifestError if it is not YAML or breaks a bound."""
    if len(text) > MAX_TEXT:
        raise ManifestError(source, [f"must be at most {MAX_TEXT:,} characters of YAML, got {len(text):,}"])
    try:
        _check_depth(text, source)
        return list(_documents(text, source))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number or date that YAML allows and Python does not
        raise ManifestError(source, [f"must be YAML: {_problem(error)}"]) from None


def _check_depth(text: str, source: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ManifestError(source, [f"must be nested at most {MAX_DEPTH} levels deep{_at(event)}"])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _documents(text: str, source: str) -> Iterator[Document]:
    loader = _Loader(text)
    try:
        number = 0
        while loader.check_node():
            number += 1
            if number > MAX_DOCUMENTS:
                raise ManifestError(source, [f"must hold at most {MAX_DOCUMENTS} documents"])
            node = loader.get_node()
            _measure(node, {}, source)
            twice = tuple(_repeated_keys(node, set()))
            content = loader.construct_document(node)
            if content is not None:
                yield _document(number, content, twice)
    finally:
        loader.dispose()


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]], source: str) -> tuple[int, int]:
    """(nodes, levels) of the expansion of `node`. ManifestError if it contains itself or breaks a bound."""
    if id(node) in known:
        if known[id(node)] == _OPEN:
            raise ManifestError(source, [f"may not contain itself{_at(node)}"])
        return known[id(node)]
    known[id(node)] = _OPEN
    below = [_measure(child, known, source) for child in _children(node)]
    total, depth = 1 + sum(size for size, _ in below), 1 + max((depth for _, depth in below), default=0)
    if total > MAX_NODES:
        raise ManifestError(source, [f"must hold at most {MAX_NODES:,} values, aliases expanded{_at(node)}"])
    if depth > MAX_DEPTH + 1:
        raise ManifestError(source, [f"must be nested at most {MAX_DEPTH} levels deep, aliases expanded{_at(node)}"])
    known[id(node)] = total, depth
    return total, depth


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _repeated_keys(node: yaml.Node, seen: set[int], path: str = "") -> Iterator[str]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            for set_here in [*_merged(value)] if key.tag == _MERGE else [name]:
                if set_here in keys:
                    yield f"{path}.{set_here}: may not be set twice{_at(key)}".lstrip(".")
                keys.add(set_here)
            yield from _repeated_keys(value, seen, f"{path}.{name}".lstrip("."))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _repeated_keys(value, seen, f"{path}[{index}]")


def _merged(node: yaml.Node) -> Iterator[str]:
    """The keys that `<<: node` sets. If the mapping sets one of them too, an API server refuses it as a duplicate."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _merged(value) if key.tag == _MERGE else [str(key.value)]
    elif isinstance(node, yaml.SequenceNode):
        for part in node.value:
            yield from _merged(part)


def _document(number: int, content: Any, twice: tuple[str, ...]) -> Document:
    if not isinstance(content, dict):
        return Document(number, None, (f"document {number} must be a mapping, got {type(content).__name__}", *twice))
    return Document(number, _without_nulls(content), twice)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(held) for key, held in value.items() if held is not None}
    return [_without_nulls(held) for held in value] if isinstance(value, list) else value


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark
        return error.problem + (f", line {mark.line + 1}, column {mark.column + 1}" if mark else "")
    return " ".join(str(error).split())


def _at(where: Any) -> str:
    return f", line {where.start_mark.line + 1}" if where.start_mark else ""
