"""The Jinja environment in which chat templates run, equal in output to the one of `transformers`, which vLLM uses.

A template comes from the model's publisher and gets input from clients, so it runs in Jinja's immutable sandbox. It
differs from `transformers` in speed only. It reads fields of messages and attributes of namespaces without the
exceptions that Jinja's general path raises and catches. A real template reads dozens of them.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["ChatEnvironment", "ChatNamespace"]

_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_ATTRIBUTES = frozenset(("index", "index0", "first", "last", "length", "previtem", "nextitem"))
_MISSING = object()
_ABSENCES_KEPT = 256


class ChatNamespace(Namespace):
    """`namespace(...)` without underscore names, as transformers has it: they would reach CPython's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `namespace(self=1)` must work, hence no named self
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _attributes_of(namespace: ChatNamespace) -> dict[str, Any]:
    """The namespace's own dict of attributes, which Jinja's Namespace has under this name only."""
    attributes: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return attributes


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """clock: what `strftime_now` reads; the engine's own clock when both are right."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _JsonFilter()
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: clock().strftime(format)
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = ChatNamespace
        self._absences: dict[str, Undefined] = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            value = obj.get(attribute, _MISSING)
            return value if value is not _MISSING else self._absent(attribute)
        if kind is ChatNamespace and not attribute.startswith("_"):
            value = _attributes_of(obj).get(attribute, _MISSING)
            if value is not _MISSING and not callable(value):
                return value
        elif kind is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def _absent(self, attribute: str) -> Undefined:
        """The value of a field that a message lacks. It is immutable, and names only the type of its object."""
        undefined = self._absences.get(attribute)
        if undefined is None:
            undefined = self.undefined(obj={}, name=attribute)
            if len(self._absences) < _ABSENCES_KEPT:
                self._absences[attribute] = undefined
        return undefined

    def compile_tree(self, tree: nodes.Template) -> Template:
        """A template from a syntax tree, which may have been changed since it was parsed."""
        return Template.from_code(self, self.compile(tree, filename="<chat template>"), {})

    def run(self, template: Template, variables: Mapping[str, Any]) -> Iterator[str]:
        """The output of one rendering, piece by piece. Raises what the template raises.

        Jinja's own `Template.render` copies a chain of globals and rewrites the traceback of every error, which costs
        more than a small template.
        """
        context = Context(self, {**self.globals, **variables}, template.name, template.blocks)
        return template.root_render_func(context)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; it prints its body."""

    tags = {"generation"}  # noqa: RUF012  Jinja reads a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller: Callable[[], str]) -> str:
        return caller()


class _TemplateDict:
    """`dict(...)` in a template: a function, so that the type itself stays out of reach."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: underscore names are not allowed")


def _raise_exception(message: str) -> None:
    raise JinjaError(message)


class _JsonFilter:
    """`tojson`: plain JSON, where Jinja's own filter would escape for HTML.

    Results are kept: the same tools come with each request of an agent, and to encode one takes 15 to 60 µs.
    """

    def __init__(self) -> None:
        self._kept = lru_cache(maxsize=_JSON_KEPT)(_json_of)

    def __call__(
        self, x: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None,
        sort_keys: bool = False,
    ) -> str:  # fmt: skip
        if type(x) in _CONTAINERS:
            with suppress(ValueError, TypeError):  # no plain data, or an option that can't be part of a key
                data = marshal.dumps(x, 0)
                if len(data) <= _JSON_KEPT_BYTES:
                    return self._kept(data, ensure_ascii, indent, separators, sort_keys)
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_CONTAINERS = frozenset((dict, list))
_JSON_KEPT = 512
_JSON_KEPT_BYTES = 1 << 15  # so that what is kept stays under 100 MB, and under 1 MB in practice


def _json_of(data: bytes, ensure_ascii: bool, indent: Any, separators: Any, sort_keys: bool) -> str:
    value = marshal.loads(data)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
