"""The base of every manifest model: frozen, camelCase outside, no unknown fields, every mistake reported at once.

If a field is wrong, pydantic does not run a model's own validators. A user would then see broken rules between fields
only after correcting the field. Here rules are data (`Rule`). They run on all valid fields, at any depth, even if other
fields are wrong. A rule that reads a wrong field is skipped, because its message would repeat that mistake or be false.
A field that breaks a rule is still valid, so further rules read it, as in an API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, TypeAdapter, ValidationError, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from plumage.api.v1alpha1.cel import entries_differ

__all__ = ["LIST_KEY", "Rule", "Struct", "TransitionRule", "named_once"]

LIST_KEY = "x-plumage-list-key"
"""In a list field's json_schema_extra: the field that is the key of an entry; "" if the entry is its own key.
A server-side apply of some entries then changes only those."""

_KNOWN = frozenset(get_args(ErrorType))
_BROKEN: Final = "broken_rule"
_WRONG: Final = object()
"""Replaces a value that has its own mistake."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between fields of one struct.

    at: the field of the message (camelCase, dotted below the struct; "" for the struct itself).
    must: the rest of the message: "must …" or "may not …".
    reads: the fields (Python names) that `holds` reads.
    cel: the same rule for an API server; `self` is the struct.
    written: fields of which the rule asks whether a user set them. An API server would set their defaults, so their
    schema has none.
    """

    at: str
    must: str
    reads: tuple[str, ...]
    holds: Callable[[Any], bool]
    cel: str
    written: tuple[str, ...] = ()


def named_once(at: str, what: str, key: str = "") -> Rule:
    """The rule that no two entries of a list name the same thing.

    at: the list, by its key in a manifest. what: that entries name, for the message. key: of an entry, dotted; empty if
    the entry itself is the name.
    """
    field, name_of = to_snake(at), attrgetter(to_snake(key)) if key else str

    def holds(spec: Any) -> bool:
        entries = getattr(spec, field)
        return len({name_of(entry) for entry in entries}) == len(entries)

    return Rule(at, f"may not name {what} twice", (field,), holds, entries_differ(at, key))


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """A rule between the old and the new struct. Only an API server can check it.

    at, must: as in `Rule`. cel: a rule on `oldSelf` and `self`. It is checked only if both exist.
    """

    at: str
    must: str
    cel: str


class Struct(BaseModel):
    """A part of a manifest."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
        hide_input_in_errors=True,
        defer_build=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()
    changes: ClassVar[tuple[TransitionRule, ...]] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _collect(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, Mapping):
            return handler(data)
        mistakes: list[InitErrorDetails] = []
        try:
            whole: Any = handler(data)
        except ValidationError as error:
            lines = error.errors(include_url=False)
            mistakes = [_again(line) for line in lines]
            whole = _sound_part(cls, data, [(line["loc"], line["type"]) for line in lines])
        mistakes += [_broken(rule, data) for rule in cls.rules if _is_broken(rule, whole, bool(mistakes))]
        if mistakes:
            raise ValidationError.from_exception_data(cls.__name__, mistakes, hide_input=True)
        sound: Self = whole
        return sound


_Line = tuple[tuple[int | str, ...], str]
"""The path below a struct or a field, and the type, of a mistake."""


def _sound_part(struct: type[Struct], data: Mapping[str, Any], lines: Sequence[_Line]) -> Struct:
    """The struct without its wrong fields. A read of one is an AttributeError."""
    part = struct.model_construct()
    for name, field in struct.model_fields.items():
        key = field.alias or name
        if key not in data:
            continue  # `model_construct` has set the default
        value = _sound_value(struct, name, data[key], [(loc[1:], kind) for loc, kind in lines if loc and loc[0] == key])
        if value is _WRONG:
            part.__dict__.pop(name, None)
        else:
            part.__dict__[name] = value
            part.__pydantic_fields_set__.add(name)
    return part


def _sound_value(struct: type[Struct], name: str, value: Any, lines: Sequence[_Line]) -> Any:
    """The value as its struct holds it. `_WRONG` if it has another mistake than a broken rule."""
    wrong = [loc for loc, kind in lines if kind != _BROKEN]
    inner, listed = _struct_in(struct.model_fields[name].annotation)
    if lines and inner is not None and not listed and isinstance(value, Mapping) and () not in wrong:
        return _sound_part(inner, value, lines)
    if wrong:
        return _WRONG
    if lines and inner is not None and listed:
        places = enumerate(value)
        return tuple(
            _sound_part(inner, one, [(loc[1:], k) for loc, k in lines if loc[:1] == (at,)]) for at, one in places
        )
    if any(loc for loc, _ in lines) and isinstance(value, Sequence):
        return tuple(value)  # strings, of which some break a rule for one string
    return _adapter(struct, name).validate_python(value, strict=None)


def _struct_in(annotation: Any) -> tuple[type[Struct] | None, bool]:
    """The struct that a field holds, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return annotation, False
    for inner in get_args(annotation):
        struct, listed = _struct_in(inner)
        if struct is not None:
            return struct, listed or get_origin(annotation) is tuple
    return None, False


@cache
def _adapter(struct: type[Struct], name: str) -> TypeAdapter[Any]:
    """Returns the adapter of one field. To build one takes half a millisecond."""
    field = struct.model_fields[name]
    form: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(form)


def _is_broken(rule: Rule, struct: Struct, partial: bool) -> bool:
    """Whether the struct breaks the rule. partial: fields may be missing; a rule that reads one is not broken."""
    if not all(hasattr(struct, name) for name in rule.reads):
        return False
    try:
        return not rule.holds(struct)
    except AttributeError:
        if partial:
            return False
        raise


def _again(line: Any) -> InitErrorDetails:
    """A line of a caught error, in the form for a new error."""
    if line["type"] in _KNOWN:
        return InitErrorDetails(type=line["type"], loc=line["loc"], input=line["input"], ctx=line.get("ctx", {}))
    return InitErrorDetails(type=_custom(line["type"], line["msg"]), loc=line["loc"], input=line["input"])


def _broken(rule: Rule, data: Mapping[str, Any]) -> InitErrorDetails:
    loc = tuple(rule.at.split(".")) if rule.at else ()
    got: Any = data
    for key in loc:
        got = got.get(key) if isinstance(got, Mapping) else None
    return InitErrorDetails(type=_custom(_BROKEN, rule.must), loc=loc, input=got)


def _custom(kind: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "{must}", {"must": message})
