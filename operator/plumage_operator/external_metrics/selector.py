"""Label selectors in the form of a query parameter: `pool=chat,tier in (a,b),!x`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from plumage.errors import ConfigurationError

__all__ = ["LONGEST", "Selects", "parse_selector"]

Selects: TypeAlias = Callable[[Mapping[str, str]], bool]

LONGEST: Final = 4096
_NAME = r"[A-Za-z0-9](?:[-_./A-Za-z0-9]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-_.A-Za-z0-9]*[A-Za-z0-9])?)?"
_PARTS: Final = re.compile(r",(?![^(]*\))")  # commas that are not within brackets
_EQUALITY: Final = re.compile(rf"({_NAME})\s*(==|=|!=)\s*({_VALUE})")
_SET: Final = re.compile(rf"({_NAME})\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS: Final = re.compile(rf"(!?)\s*({_NAME})")


def parse_selector(text: str) -> Selects:
    """Which labels it selects; an empty one selects all. ConfigurationError quotes what can't be read."""
    if len(text) > LONGEST:
        raise ConfigurationError(f"a label selector may have {LONGEST} characters, this one has {len(text)}")
    tests = [_requirement(part.strip()) for part in _PARTS.split(text)] if text.strip() else []
    return lambda labels: all(test(labels) for test in tests)


def _requirement(part: str) -> Selects:
    if found := _EQUALITY.fullmatch(part):
        name, operator, value = found.groups()
        return _among(name, frozenset({value}), negated=operator == "!=")
    if found := _SET.fullmatch(part):
        name, operator, listed = found.groups()
        values = frozenset(value.strip() for value in listed.split(","))
        return _among(name, values, negated=operator == "notin")
    if found := _EXISTS.fullmatch(part):
        absent, name = found.groups()
        return (lambda labels: name not in labels) if absent else (lambda labels: name in labels)
    raise ConfigurationError(f"a label selector has forms such as pool=chat or pool in (a,b), not {part!r}")


def _among(name: str, values: frozenset[str], *, negated: bool) -> Selects:
    if negated:  # as in Kubernetes: a label that is not there is not equal to anything
        return lambda labels: labels.get(name) not in values
    return lambda labels: labels.get(name) in values
