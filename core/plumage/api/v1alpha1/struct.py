"""The base of every manifest model: frozen, camelCase outside, nothing unknown, every mistake reported at once.

pydantic stops before a model's own validators when one of its fields is wrong, so a person would meet the cross-field
rules only in a second round. Here rules are data (`Rule`), and they run on the fields that are right even when others
are not, at any depth: a struct with a wrong field is judged by its other fields. A rule that reads a wrong field is
left out, since it could only repeat the complaint or invent one. A field that merely breaks a rule is not wrong in
itself, so further rules read it, as an API server has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, TypeAdapter, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

__all__ = ["LIST_KEY", "Change", "Rule", "Struct"]

LIST_KEY = "x-plumage-list-key"
"""In a list field's json_schema_extra: the field that is the key of an entry; "" if the entry is its own key.
A server-side apply of some entries then changes only those."""

_KNOWN = frozenset(get_args(ErrorType))
_BROKEN: Final = "broken_rule"
_WRONG: Final = object()
"""In place of a value that has a mistake of its own."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between fields of one struct.

    at: the field the mistake is shown at (camelCase, dotted below the struct, "" for the struct itself).
    must: the rest of the message: "must …" or "may not …". reads: the fields (Python names) that `holds` looks at.
    cel: the same rule for an API server, `self` being the struct. written: the fields whose being written is what
    counts; an API server would write their defaults out, so they have none there.
    """

    at: str
    must: str
    reads: tuple[str, ...]
    holds: Callable[[Any], bool]
    cel: str
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A rule between a struct as it was and as it shall be, which only an API server can judge.

    at, must: as a rule's. cel: with `oldSelf` beside `self`; it is asked only where both are there.
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
    changes: ClassVar[tuple[Change, ...]] = ()

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
"""Place and type of a mistake, below a struct or a field."""


def _sound_part(struct: type[Struct], data: Mapping[str, Any], lines: Sequence[_Line]) -> Struct:
    """The struct without the fields that are wrong: reading one is an AttributeError."""
    part = struct.model_construct()
    for name, field in struct.model_fields.items():
        key = field.alias or name
        if key not in data:
            continue  # its default is there, if it has one
        value = _sound_value(field, data[key], [(loc[1:], kind) for loc, kind in lines if loc and loc[0] == key])
        if value is _WRONG:
            part.__dict__.pop(name, None)
        else:
            part.__dict__[name] = value
            part.__pydantic_fields_set__.add(name)
    return part


def _sound_value(field: FieldInfo, value: Any, lines: Sequence[_Line]) -> Any:
    """The value as its struct holds it; `_WRONG` where it has a mistake that more than a rule finds."""
    wrong = [loc for loc, kind in lines if kind != _BROKEN]
    struct, listed = _struct_in(field.annotation)
    if lines and struct is not None and not listed and isinstance(value, Mapping) and () not in wrong:
        return _sound_part(struct, value, lines)
    if wrong:
        return _WRONG
    if lines and struct is not None and listed:
        places = enumerate(value)
        return tuple(
            _sound_part(struct, one, [(loc[1:], k) for loc, k in lines if loc[:1] == (at,)]) for at, one in places
        )
    if any(loc for loc, _ in lines) and isinstance(value, Sequence):
        return tuple(value)  # of strings, some of which break a rule for one string
    return _adapter(field).validate_python(value, strict=None)


def _struct_in(annotation: Any) -> tuple[type[Struct] | None, bool]:
    """The struct that a field holds, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return annotation, False
    for inner in get_args(annotation):
        struct, listed = _struct_in(inner)
        if struct is not None:
            return struct, listed or get_origin(annotation) is tuple
    return None, False


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    form: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(form)


def _is_broken(rule: Rule, struct: Struct, partial: bool) -> bool:
    """partial: fields may be missing, and a rule that reads one of those can't be judged."""
    if not all(hasattr(struct, name) for name in rule.reads):
        return False
    try:
        return not rule.holds(struct)
    except AttributeError:
        if partial:
            return False
        raise


def _again(line: Any) -> InitErrorDetails:
    """A line of a caught error in the form that a new error takes."""
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
