"""The base of every manifest model: frozen, camelCase outside, nothing unknown, every mistake reported at once.

pydantic stops before a model's own validators when one of its fields is wrong, so a person would meet the cross-field
rules only in a second round. Here rules are data (`Rule`), and they run on the fields that are right even when others
are not; a rule that reads a wrong field is left out, since it could only repeat the complaint or invent one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, TypeAdapter, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

__all__ = ["LIST_KEY", "Change", "Rule", "Struct"]

LIST_KEY = "x-plumage-list-key"
"""Of a list's field, in its json_schema_extra: the field that tells its entries apart, "" for entries that are their
own keys. Whoever applies a part of the list changes that part then."""

_KNOWN = frozenset(get_args(ErrorType))


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
            mistakes = [_again(line) for line in error.errors(include_url=False)]
            whole = _sound_part(cls, data, {str(line["loc"][0]) for line in mistakes})
        mistakes += [_broken(rule, data) for rule in cls.rules if _readable(rule, whole) and not rule.holds(whole)]
        if mistakes:
            raise ValidationError.from_exception_data(cls.__name__, mistakes, hide_input=True)
        sound: Self = whole
        return sound


def _sound_part(struct: type[Struct], data: Mapping[str, Any], wrong: set[str]) -> SimpleNamespace:
    """The struct's right fields by attribute; a wrong one is absent, which `_readable` notices."""
    part = SimpleNamespace(model_fields_set=set())
    for name, field in struct.model_fields.items():
        key = field.alias or name
        if key in wrong:
            continue
        if key not in data:
            setattr(part, name, field.get_default(call_default_factory=True, validated_data={}))
            continue
        setattr(part, name, _adapter(field).validate_python(data[key], strict=None))
        part.model_fields_set.add(name)
    return part


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    form: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(form)


def _readable(rule: Rule, part: object) -> bool:
    return all(hasattr(part, name) for name in rule.reads)


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
    return InitErrorDetails(type=_custom("broken_rule", rule.must), loc=loc, input=got)


def _custom(kind: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "{must}", {"must": message})
