"""Kubernetes' Quantity: an integer or a string such as `16Gi`, `500m`, `0.992`.

Manifests have no floats, because a float may change its digits in JSON. So fractions are quantities too. The text stays
as it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

__all__ = ["BOUNDS", "LONGEST", "PATTERN", "Quantity", "between"]

PATTERN = r"^[+-]?([0-9]{1,18}(\.[0-9]{0,9})?|\.[0-9]{1,9})(([KMGTPE]i)|[munkMGTPE]|([eE][+-]?[0-9]{1,2}))?$"
LONGEST = 40  # characters
BOUNDS = "x-plumage-bounds"
"""The key of a quantity's bounds in a JSON schema, which has no standard key for them."""

_FORM = re.compile(PATTERN)
_SUFFIXES = {
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate(("m", "u", "n"), 1)},
}


class Quantity(str):
    """An exact number, as the text it was written in. Equal numbers are equal quantities: `1Gi` == `1024Mi`."""

    __slots__ = ()

    @property
    def value(self) -> Decimal:
        for size in (2, 1):
            if self[-size:] in _SUFFIXES:
                return Decimal(self[:-size]) * _SUFFIXES[self[-size:]]
        return Decimal(self)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        """The integer, rounded up, as in Kubernetes."""
        return int(self.value.to_integral_value(rounding="ROUND_CEILING"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_parse, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Kubernetes' own schema of resource.Quantity.
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": PATTERN,
            "x-kubernetes-int-or-string": True,
        }


def _parse(value: object) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return Quantity(str(value))
    if isinstance(value, str) and len(value) <= LONGEST and _FORM.fullmatch(value):
        return Quantity(value)
    if isinstance(value, float):
        raise PydanticCustomError("quantity", 'must be a quantity without a float: put it in quotes, as "0.5"')
    raise PydanticCustomError("quantity", "must be a quantity: an integer or a string such as 16Gi, 500m or 0.5")


@dataclass(frozen=True, slots=True)
class _Between:
    """Bounds of a quantity, both inclusive."""

    low: Quantity
    high: Quantity

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), BOUNDS: [str(self.low), str(self.high)]}

    def _check(self, quantity: Quantity) -> Quantity:
        if not self.low.value <= quantity.value <= self.high.value:
            bounds = {"low": str(self.low), "high": str(self.high)}
            raise PydanticCustomError("quantity_bounds", "must be a quantity from {low} to {high}", bounds)
        return quantity


def between(low: str, high: str) -> Any:
    """Metadata for `Annotated[Quantity, between("0", "1")]`."""
    return _Between(Quantity(low), Quantity(high))
