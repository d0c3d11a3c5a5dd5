"""Pieces of rules in CEL, the language in which an API server judges them."""

from __future__ import annotations

__all__ = ["entries_differ", "literal"]


def entries_differ(field: str, key: str = "") -> str:
    """No two entries of the list `field` have the same `key` (dotted; none: are the same); an absent list is right."""
    same = f"other.{key} == one.{key}" if key else "other == one"
    return f"!has(self.{field}) || self.{field}.all(one, self.{field}.exists_one(other, {same}))"


def literal(value: int | str) -> str:
    """A value as CEL writes it."""
    if isinstance(value, int):
        return str(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
