"""The structural schema of a manifest's model, for an API server.

It has no `$ref`, and no `anyOf` except int-or-string. It has static defaults, a bound on everything, and the rules
between fields as CEL. Its source is pydantic's JSON schema. Rules and bounds of quantities come from the models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from plumage.api.v1alpha1.cel import literal
from plumage.api.v1alpha1.field_types import KEY_LENGTH, STRING_RULES, WORDS
from plumage.api.v1alpha1.struct import LIST_KEY, Rule, Struct, TransitionRule
from plumage.quantity import BOUNDS, LONGEST, Quantity

__all__ = ["structs_in", "structural_schema"]

Schema = dict[str, Any]

_KEPT = ("minLength", "maxLength", "pattern", "enum", "minimum", "maximum", "minItems", "maxItems", "maxProperties")
_INT32 = 2**31 - 1


def structural_schema(model: type[Struct], *, defaults: bool = True) -> Schema:
    """The whole schema of `model`. defaults: whether the API server fills in absent fields."""
    whole = model.model_json_schema()
    structs = {struct.__name__: struct for struct in structs_in(model)}
    return _struct(model, whole, _Definitions(whole.get("$defs", {}), structs, defaults))


def structs_in(form: Any) -> Iterator[type[Struct]]:
    """The struct itself and the structs in its fields, once for each place."""
    if isinstance(form, type) and issubclass(form, Struct):
        yield form
        for field in form.model_fields.values():
            yield from structs_in(field.annotation)
    for part in get_args(form):
        yield from structs_in(part)


class _Definitions:
    """Resolves `$ref` to the JSON schema, and to the struct if it is one."""

    def __init__(self, schemas: Mapping[str, Schema], structs: Mapping[str, type[Struct]], defaults: bool) -> None:
        self._schemas, self._structs, self.defaults = schemas, structs, defaults

    def resolve(self, reference: str, overrides: Schema) -> tuple[Schema, type[Struct] | None]:
        name = reference.rpartition("/")[2]
        return {**self._schemas[name], **overrides}, self._structs.get(name)


def _struct(struct: type[Struct], schema: Schema, definitions: _Definitions) -> Schema:
    unwritten = {name for rule in struct.rules for name in rule.written}
    properties = {}
    for name, field in struct.model_fields.items():
        key = field.alias or name
        node = _node(schema["properties"][key], definitions)
        if definitions.defaults and name in unwritten:
            node["description"] += _default_in_words(field.default)
        elif definitions.defaults:
            node |= _default(None if field.is_required() else field.default)
        properties[key] = node
    rules = [*map(_validation, struct.rules), *map(_validation, struct.changes)]
    return {
        **_described(schema),
        "type": "object",
        "properties": properties,
        **({"required": list(schema["required"])} if schema.get("required") else {}),
        **_validations(rules),
    }


def _default(value: Any) -> Schema:
    """The default that an API server fills in. Empty values stay absent, so that an object is easy to read."""
    if isinstance(value, Struct):
        return {"default": _expanded(value)}
    return {} if value in (None, "", (), {}) else {"default": _plain(value)}


def _expanded(struct: Struct) -> Schema:
    """A struct's default with the defaults of its fields. An API server checks the rules before it fills them in."""
    unwritten = {name for rule in struct.rules for name in rule.written}
    fields = {
        field.alias or name: getattr(struct, name)
        for name, field in type(struct).model_fields.items()
        if name not in unwritten
    }
    return {key: default["default"] for key, value in fields.items() if (default := _default(value))}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Struct):
        return _expanded(value)
    return str(value) if isinstance(value, Quantity) else value


def _default_in_words(value: Any) -> str:
    """The default as part of the description. For fields whose rule depends on whether a user set them."""
    return f" {value} when absent." if isinstance(value, str | int) else ""


def _node(schema: Schema, definitions: _Definitions) -> Schema:
    """The schema of one node. Its default belongs to the field and is not included."""
    overrides = _overrides(schema)
    if "$ref" in schema:
        schema, struct = definitions.resolve(schema["$ref"], overrides)
        return _struct(struct, schema, definitions) if struct is not None else _node(schema, definitions)
    if "x-kubernetes-int-or-string" in schema:
        return _int_or_string(schema)
    if "anyOf" in schema:  # optional
        (option,) = (one for one in schema["anyOf"] if one.get("type") != "null")
        return _node({**option, **overrides}, definitions)
    match schema.get("type"):
        case "array":
            return _list(schema, definitions)
        case "object":
            return _map(schema, definitions)
        case kind:
            return _scalar(schema, kind)


def _overrides(schema: Schema) -> Schema:
    return {key: schema[key] for key in ("description", LIST_KEY) if key in schema}


def _described(schema: Schema) -> Schema:
    return {"description": " ".join(schema["description"].split())} if "description" in schema else {}


def _bounds(schema: Schema) -> Schema:
    return {key: schema[key] for key in _KEPT if key in schema}


def _scalar(schema: Schema, kind: str | None) -> Schema:
    node = {**_described(schema), "type": kind, **_bounds(schema)}
    if kind == "integer":
        node["format"] = "int32" if schema["maximum"] <= _INT32 else "int64"
    return {**node, **_validations([*_in_words(schema), *schema.get(STRING_RULES, [])])}


def _int_or_string(schema: Schema) -> Schema:
    node = {
        **_described(schema),
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "maxLength": LONGEST,
        **_bounds(schema),
    }
    if BOUNDS in schema:
        low, high = schema[BOUNDS]
        node |= _validations([_between(low, high)])
    return node


def _between(low: str, high: str) -> Schema:
    held = "quantity(string(self))"
    within = f"{held}.compareTo(quantity('{low}')) >= 0 && {held}.compareTo(quantity('{high}')) <= 0"
    return {
        "rule": f"!isQuantity(string(self)) || ({within})",
        "message": f"must be a quantity from {low} to {high}",
    }


def _list(schema: Schema, definitions: _Definitions) -> Schema:
    """A list is atomic, unless the field names the key of its entries."""
    key = schema.get(LIST_KEY)
    kind = "atomic" if key is None else "map" if key else "set"
    return {
        **_described(schema),
        "type": "array",
        "items": _node(schema["items"], definitions),
        **_bounds(schema),
        "x-kubernetes-list-type": kind,
        **({"x-kubernetes-list-map-keys": [key]} if key else {}),
    }


def _map(schema: Schema, definitions: _Definitions) -> Schema:
    node = {**_described(schema), "type": "object", **_bounds(schema)}
    rule = {
        "rule": f"self.all(key, size(key) <= {KEY_LENGTH})",
        "message": f"must have keys of at most {KEY_LENGTH} characters",
    }
    return {**node, "additionalProperties": _node(schema["additionalProperties"], definitions), **_validations([rule])}


def _in_words(schema: Schema) -> list[Schema]:
    """The pattern's rule with a message in words."""
    pattern = schema.get("pattern")
    if pattern not in WORDS:
        return []
    return [{"rule": f"self.matches({literal(pattern)})", "message": f"must be {WORDS[pattern]}"}]


def _validations(rules: list[Schema]) -> Schema:
    return {"x-kubernetes-validations": rules} if rules else {}


def _validation(rule: Rule | TransitionRule) -> Schema:
    path = (
        {} if not rule.at or rule.at.startswith("metadata.") else {"fieldPath": f".{rule.at}"}
    )  # the field is not in this schema
    return {"rule": rule.cel, "message": rule.must, **path}
