"""The bounded field types that several parts of a manifest share, with a description of each pattern."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, PlainValidator, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from plumage.api.v1alpha1.struct import Struct
from plumage.quantity import Quantity, between

__all__ = [
    "KEY_LENGTH",
    "SPACES",
    "STRING_RULES",
    "WORDS",
    "ConfigMapKeyRef",
    "Fraction",
    "IntOrPercent",
    "Label",
    "LabelName",
    "MapKey",
    "Memory",
    "ObjectRef",
    "Path",
    "Percent",
    "PositiveNumber",
    "Seconds",
    "SecretKeyRef",
    "StringMap",
    "StringRule",
    "Subdomain",
    "Text",
]

STRING_RULES = "x-plumage-string-rules"
"""Key of a string's schema: the rules for this string alone, in CEL."""


@dataclass(frozen=True, slots=True)
class StringRule:
    """Metadata for `Annotated[str, StringRule(…)]`: a rule for one string, so that a message names a list's entry.

    must: "must …" or "may not …". cel: the same rule for an API server, `self` being the string.
    """

    must: str
    cel: str
    holds: Callable[[str], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), STRING_RULES: [{"rule": self.cel, "message": self.must}]}

    def _check(self, text: str) -> str:
        if not self.holds(text):
            raise PydanticCustomError("broken_rule", "{must}", {"must": self.must})
        return text


LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
# Engines of regular expressions differ in their white space. It is written out, so that all servers agree.
SPACES = r"\s\v\x{85}\pZ"
KEY = r"^[-._a-zA-Z0-9]+$"
REQUEST_FIELD = r"^[A-Za-z_][A-Za-z0-9_]*$"
PATH = r"^/[^\x00]*$"
# What a pattern asks for, so that no user has to read a regular expression.
WORDS = {
    LABEL: "lowercase letters, digits and '-', beginning and ending with a letter or digit",
    SUBDOMAIN: "lowercase letters, digits, '-' and '.', beginning and ending with a letter or digit",
    KEY: "letters, digits, '-', '_' and '.'",
    REQUEST_FIELD: "letters, digits and '_', beginning with a letter or '_'",
    PATH: "an absolute path",
}

Label = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL)]
Subdomain = Annotated[str, Field(min_length=1, max_length=253, pattern=SUBDOMAIN)]
Key = Annotated[str, Field(min_length=1, max_length=253, pattern=KEY)]
Text = Annotated[str, Field(min_length=1, max_length=1024)]
RequestField = Annotated[str, Field(min_length=1, max_length=64, pattern=REQUEST_FIELD)]
Path = Annotated[str, Field(min_length=1, max_length=1024, pattern=PATH)]
KEY_LENGTH = 317  # characters: a prefix of 253, a slash, a name of 63
MapKey = Annotated[str, Field(max_length=KEY_LENGTH)]
StringMap = dict[MapKey, Annotated[str, Field(max_length=1024)]]
LabelName = Annotated[str, Field(min_length=1, max_length=KEY_LENGTH)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]
Percent = Annotated[int, Field(ge=0, le=100)]
Fraction = Annotated[Quantity, between("0", "1")]
PositiveNumber = Annotated[Quantity, between("0.000001", "1000000000")]
Memory = Annotated[Quantity, between("1Mi", "64Ti")]


PERCENTAGE = r"^(100|[1-9]?[0-9])%$"


def _int_or_percent(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1000:
        return value
    if isinstance(value, str) and re.fullmatch(PERCENTAGE, value):
        return value
    raise PydanticCustomError("int_or_percent", "must be an integer from 0 to 1000, or a percentage from 0% to 100%")


IntOrPercent = Annotated[
    int | str,
    PlainValidator(_int_or_percent),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": PERCENTAGE,
            "minimum": 0,
            "maximum": 1000,
            "x-kubernetes-int-or-string": True,
        }
    ),
]


class SecretKeyRef(Struct):
    """A key of a Secret in the pool's namespace. Pods mount it; the operator can't read it."""

    name: Subdomain = Field(description="Name of the Secret, in the same namespace.")
    key: Key = Field(description="Key in the Secret whose value is used.")


class ConfigMapKeyRef(Struct):
    """A key of a ConfigMap in the pool's namespace."""

    name: Subdomain = Field(description="Name of the ConfigMap, in the same namespace.")
    key: Key = Field(description="Key in the ConfigMap whose value is used.")


class ObjectRef(Struct):
    """Another object of the same namespace, by name."""

    name: Subdomain = Field(description="Name of the object, in the same namespace.")
