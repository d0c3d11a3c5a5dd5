"""Numbers of things in messages. Pure."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """`1 mistake`, `2 mistakes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
