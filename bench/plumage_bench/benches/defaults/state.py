"""The content of an object as plain values, to compare two objects that were made in different ways."""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum
from types import FunctionType
from typing import Any

__all__ = ["state_of"]

_PLAIN = (str, bytes, int, float, bool, type(None), type)


def state_of(thing: object, seen: frozenset[int] = frozenset()) -> Any:
    """All attributes, also of nested objects and of functions' closures; random generators are left out. An object that
    contains itself is replaced by its type's name at its second appearance."""
    if isinstance(thing, _PLAIN):
        return thing
    if isinstance(thing, Enum):
        return thing.value
    if isinstance(thing, random.Random):
        return "random"
    if id(thing) in seen:
        return type(thing).__name__
    seen |= {id(thing)}
    if isinstance(thing, dict):
        return [(repr(key), state_of(value, seen)) for key, value in thing.items()]
    if isinstance(thing, FunctionType):
        return [state_of(cell.cell_contents, seen) for cell in thing.__closure__ or ()]
    if hasattr(thing, "__iter__") and hasattr(thing, "__len__") and not _attributes(thing):
        return [state_of(part, seen) for part in thing]
    return [type(thing).__name__, *((name, state_of(value, seen)) for name, value in _named(thing))]


def _attributes(thing: object) -> list[str]:
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return sorted({*slots, *getattr(thing, "__dict__", {})} - {"__dict__", "__weakref__"})


def _named(thing: object) -> Iterator[tuple[str, object]]:
    for name in _attributes(thing):
        if hasattr(thing, name):
            yield name, getattr(thing, name)
