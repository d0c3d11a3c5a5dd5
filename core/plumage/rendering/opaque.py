"""Opaque texts: strings that a template can concatenate and print. Any other read is recorded or refused.

C code could read their characters directly. So `compile_opaque` accepts only the syntax of the tables below, which does
not do that, and guards the filters and tests that would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Template, Undefined, nodes
from jinja2.visitor import NodeTransformer

from plumage.rendering.environment import ChatEnvironment

__all__ = ["Opaque", "OpaqueEnvironment", "Watch", "compile_opaque"]

_JOINED = "_plumage_joined"

_PASSED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.Name, nodes.NSRef,
    nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Getattr, nodes.Getitem,
    nodes.Slice, nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Compare, nodes.Operand, nodes.And,
    nodes.Or, nodes.Not, nodes.Add, nodes.Sub, nodes.Mod, nodes.Neg, nodes.Pos, nodes.Concat, nodes.Break,
    nodes.Continue,
)  # fmt: skip
_FUNCTIONS = frozenset(("namespace", "raise_exception", "strftime_now", "range"))
_METHODS = frozenset(("startswith", "endswith", "strip", "lstrip", "rstrip", "split", "items", "get", "keys", "values"))
# These read their argument in Python, where an opaque text notices it. Others must not get opaque texts.
_FILTERS = frozenset(
    ("trim", "length", "count", "default", "d", "first", "last", "list", "string", "selectattr", "rejectattr", _JOINED)
)
_TESTS = frozenset(
    ("defined", "undefined", "none", "string", "mapping", "boolean", "true", "false", "integer", "float", "number",
     "sequence", "iterable", "eq", "equalto", "==", "ne", "!=")
)  # fmt: skip
_PLAIN = frozenset((str, int, bool, float, type(None), Undefined))


class _SeenError(Exception):
    """The template read a text."""


class Watch:
    """Reads of opaque texts in one run. `seen`: a read that an outline cannot test again."""

    def __init__(self) -> None:
        self.seen = False
        self.false: dict[tuple[int, Callable[..., bool], str], None] = {}
        self.unmoved: dict[tuple[int, Callable[..., str], tuple[str, ...]], None] = {}
        self.filled: dict[int, None] = {}
        self.dates: dict[str, str] = {}

    def refuse(self) -> _SeenError:
        self.seen = True
        return _SeenError()


class Opaque(str):
    """A text of a message (its `place` among them), or one put together with such a text (-1)."""

    watch: Watch
    place: int

    @classmethod
    def of(cls, watch: Watch, text: str, place: int = -1) -> Opaque:
        made = str.__new__(cls, text)
        made.watch, made.place = watch, place
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return Opaque.of(self.watch, str.__add__(self, other))

    def __radd__(self, other: str) -> str:
        return Opaque.of(self.watch, str.__add__(other, self))

    def __bool__(self) -> bool:
        if self.place < 0:
            raise self.watch.refuse()
        self.watch.filled[self.place] = None
        return True


def _asked(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Tests that are assumed false, as they nearly always are."""

    def ask(self: Opaque, *arguments: Any) -> Any:
        if self.place < 0 or len(arguments) != 1 or type(arguments[0]) is not str or not arguments[0]:
            raise self.watch.refuse()
        self.watch.false[self.place, method, arguments[0]] = None
        return name == "__ne__"

    return ask


def _stripped(method: Callable[..., str]) -> Callable[..., Any]:
    """Assumed to find nothing to strip."""

    def strip(self: Opaque, *arguments: Any) -> Any:
        if self.place < 0 or not all(type(argument) is str for argument in arguments if argument is not None):
            raise self.watch.refuse()
        self.watch.unmoved[self.place, method, tuple(a for a in arguments if a is not None)] = None
        return self

    return strip


def _refused(self: Opaque, *_: Any, **__: Any) -> Any:
    raise self.watch.refuse()


_KEPT = frozenset((
    "__add__", "__class__", "__delattr__", "__dir__", "__doc__", "__getattribute__", "__getstate__", "__init__",
    "__init_subclass__", "__new__", "__setattr__", "__str__", "__subclasshook__",
))  # fmt: skip
for _name in dir(str):
    if _name in ("__contains__", "startswith", "endswith", "__eq__"):
        setattr(Opaque, _name, _asked(_name, getattr(str, _name)))
    elif _name == "__ne__":
        setattr(Opaque, _name, _asked(_name, str.__eq__))
    elif _name in ("strip", "lstrip", "rstrip"):
        setattr(Opaque, _name, _stripped(getattr(str, _name)))
    elif _name not in _KEPT:
        setattr(Opaque, _name, _refused)


def compile_opaque(source: str, clock: Callable[[], datetime]) -> tuple[OpaqueEnvironment, Template] | None:
    """The template for opaque texts, and its environment; None if it could read texts without an error."""
    environment = OpaqueEnvironment(clock)
    tree = environment.parse(source)
    if not all(map(_passes, [tree, *tree.find_all(nodes.Node)])):
        return None
    tree = _JoinInstead().visit(tree)
    tree.set_environment(environment)
    return environment, environment.compile_tree(tree)


def _passes(node: nodes.Node) -> bool:
    """Whether the node reads a text only where an opaque one notices it."""
    if type(node) not in _PASSED:
        return False
    if isinstance(node, nodes.For):
        return not node.recursive
    if isinstance(node, nodes.Filter):
        return node.name != "random"
    if isinstance(node, nodes.Call):
        return _calls_safely(node)
    if isinstance(node, nodes.Compare):
        tested = [node.expr, *(operand.expr for operand in node.ops)]
        within = [index for index, operand in enumerate(node.ops) if operand.op in ("in", "notin")]
        return all(isinstance(tested[index], nodes.Const) for index in within)
    return not isinstance(node, nodes.Mod) or (isinstance(node.right, nodes.Const) and type(node.right.value) is int)


def _calls_safely(node: nodes.Call) -> bool:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    if isinstance(node.node, nodes.Name):
        return node.node.name in _FUNCTIONS
    constant = all(isinstance(argument, nodes.Const) for argument in node.args) and not node.kwargs
    return isinstance(node.node, nodes.Getattr) and node.node.attr in _METHODS and constant


class _JoinInstead(NodeTransformer):
    """`a ~ b` joins in C: a filter of ours does it where texts are opaque."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  Jinja finds it by this name
        parts = [self.visit(part) for part in node.nodes]
        return nodes.Filter(nodes.List(parts, "load"), _JOINED, [], [], None, None).set_lineno(node.lineno)


class OpaqueEnvironment(ChatEnvironment):
    """The environment of templates with opaque texts. watch: of the current run."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self.now: Callable[[str], str] = lambda format: clock().strftime(format)
        self.watch = Watch()
        self.globals["strftime_now"] = self._note_date
        self._guard(self.filters, _FILTERS)
        self._guard(self.tests, _TESTS)
        self.filters[_JOINED] = self._join

    def _note_date(self, format: str) -> str:
        return self.watch.dates.setdefault(format, self.now(format))

    def _guard(self, calls: dict[str, Any], trusted: frozenset[str]) -> None:
        calls.update({name: self._guarded(call) for name, call in calls.items() if name not in trusted})

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        passed = hasattr(call, "jinja_pass_arg")

        @wraps(call)
        def guarded(*arguments: Any, **options: Any) -> Any:
            if not _all_plain([*arguments[passed:], *options.values()]):
                raise self.watch.refuse()
            return call(*arguments, **options)

        return guarded

    def _join(self, parts: list[Any]) -> str:
        texts = [part if type(part) is Opaque else str(part) for part in parts]
        joined = "".join(texts)
        return Opaque.of(self.watch, joined) if any(type(text) is Opaque for text in texts) else joined


def _all_plain(values: Iterable[Any]) -> bool:
    """Whether no value is or contains an opaque text."""
    for value in values:
        kind = type(value)
        if kind is dict:
            if not (_all_plain(value) and _all_plain(value.values())):
                return False
        elif kind is list or kind is tuple:
            if not _all_plain(value):
                return False
        elif kind not in _PLAIN:
            return False
    return True
