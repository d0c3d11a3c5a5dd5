"""Parts of rules in CEL, the language in which an API server checks them."""

from __future__ import annotations

__all__ = ["entries_differ", "literal"]


def entries_differ(field: str, key: str = "") -> str:
    """True if all entries of the list `field` differ in `key`, a dotted path; in the whole entry if it is empty.

    An absent list is valid.
    """
    same = f"other.{key} == one.{key}" if key else "other == one"
    return f"!has(self.{field}) || self.{field}.all(one, self.{field}.exists_one(other, {same}))"


def literal(value: int | str) -> str:
    """A value as a literal of CEL."""
    if isinstance(value, int):
        return str(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
