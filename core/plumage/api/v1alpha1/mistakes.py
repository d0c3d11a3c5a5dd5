"""Messages for pydantic's errors: the field's path, what it must be, what it got."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from plumage.api.v1alpha1.field_types import WORDS

__all__ = ["describe"]

_SHOWN = 80  # characters of a wrong value that a message repeats
_CREDENTIALS = re.compile(r"//[^/\s@]+@")
_PLAIN = {
    "int_type": "must be an integer",
    "int_parsing_size": "must be an integer",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "invalid_key": "must have strings as keys",
    "missing": "must be set",
}


def describe(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Returns one line per mistake, in the order of the fields."""
    return [_line(model, line) for line in error.errors(include_url=False) if not _counts_only_the_right_ones(line)]


def _counts_only_the_right_ones(line: Any) -> bool:
    """Whether pydantic reports a list as too short because its entries are wrong. These are reported themselves."""
    return bool(line["type"] == "too_short" and len(line["input"]) >= line["ctx"]["min_length"])


def _line(model: type[BaseModel], line: Any) -> str:
    if _is_long_key(line):
        bound = f"must have keys of at most {line['ctx']['max_length']:,} characters"
        return f"{_path(model, line['loc'][:-2])}: {bound}, got {_got(line['input'])}"
    path = _path(model, line["loc"])
    if line["type"] == "extra_forbidden":
        return f"{path}: may not be set: there is no such field{_guess(model, line['loc'])}"
    if line["type"] == "missing":
        return f"{path}: must be set, got nothing"
    must = _must(line["type"], line["msg"], line.get("ctx", {}))
    return f"{path}: {must}, got {_got(line['input'])}{_nearest(line)}"


def _nearest(line: Any) -> str:
    """The allowed value that was probably meant, as the end of a message; empty if none is similar."""
    if line["type"] != "literal_error" or not isinstance(line["input"], str):
        return ""
    allowed = {value.lower(): value for value in re.findall(r"'([^']*)'", line["ctx"]["expected"])}
    near = difflib.get_close_matches(line["input"].lower(), allowed, n=1)
    return f"; did you mean {allowed[near[0]]}?" if near else ""


def _is_long_key(line: Any) -> bool:
    """Whether a key of a mapping is too long. The mapping is reported, as by an API server. A key may be `[key]`."""
    return bool(line["type"] == "string_too_long" and line["loc"][-2:] == (line["input"], "[key]"))


def _must(kind: str, message: str, context: dict[str, Any]) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "literal_error":
        return f"must be {context['expected']}".replace("'", "")
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']:,}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']:,}"
    if kind == "string_pattern_mismatch":
        return f"must be {WORDS.get(context['pattern'], context['pattern'])}"
    if kind in ("string_too_short", "too_short"):
        return _length("at least", context["min_length"], kind)
    if kind in ("string_too_long", "too_long"):
        return _length("at most", context["max_length"], kind)
    return message


def _length(bound: str, length: int, kind: str) -> str:
    thing = "character" if kind.startswith("string") else "entry"
    many = {"character": "characters", "entry": "entries"}[thing]
    return f"must have {bound} {length:,} {thing if length == 1 else many}"


def _path(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    """The path as an API server writes it: fields after dots, keys and indices in brackets."""
    path = ""
    struct: type[BaseModel] | None = model
    for part in loc:
        if part == "[key]":
            continue
        if isinstance(part, int) or struct is None:
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
            struct = _below(struct, part)
    return path or "the manifest"


def _got(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list | tuple):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    text = _CREDENTIALS.sub("//<hidden>@", text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _guess(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    """The field that was probably meant, or all fields, as the end of a message."""
    fields = _fields_at(model, loc[:-1])
    near = difflib.get_close_matches(str(loc[-1]), fields, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are: {', '.join(fields)}" if fields else ""


def _fields_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    found: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int) or found is None:
            continue
        found = _below(found, part)
    return [field.alias or name for name, field in found.model_fields.items()] if found else []


def _below(struct: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The struct in the field with this name in a manifest; None if the field holds none."""
    return next((_struct(f.annotation) for n, f in struct.model_fields.items() if (f.alias or n) == name), None)


def _struct(annotation: Any) -> type[BaseModel] | None:
    """The struct inside `Struct`, `Struct | None`, `tuple[Struct, ...]` or an Annotated of these."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (struct := _struct(inner)) is not None:
            return struct
    return None
