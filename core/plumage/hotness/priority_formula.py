"""Priority formulas that users write: `frequency + clock / length` (HotPrefix §4, Eq. 5 and 6).

The text is parsed into a tree and never evaluated as code. Its length and its number of terms are bounded. Only four
names, numbers and four operators are valid. Every result is finite: a zero divisor counts as a tiny one, and results
stay within ±1e18.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from plumage.errors import ConfigurationError

__all__ = ["MAX_CHARACTERS", "MAX_TERMS", "Formula", "parse_formula"]

MAX_CHARACTERS = 120
MAX_TERMS = 8
_BOUND = 1e18
_TINY = 1e-9
_NAMES = {"frequency": "frequency", "freq": "frequency", "clock": "clock", "length": "length", "depth": "depth"}
_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)|(?P<name>[a-z]+)|(?P<operator>[-+*/]))")
_HELP = "write terms (frequency, clock, length, depth or a number) joined by + - * /, like 'frequency + clock / length'"


@dataclass(frozen=True, slots=True)
class _Term:
    """A name, or a number when `name` is empty."""

    name: str
    number: float = 0.0

    def value(self, names: dict[str, float]) -> float:
        return names[self.name] if self.name else self.number


@dataclass(frozen=True, slots=True)
class _Binary:
    operator: str
    left: _Node
    right: _Term | _Binary

    def value(self, names: dict[str, float]) -> float:
        left, right = self.left.value(names), self.right.value(names)
        if self.operator == "+":
            return left + right
        if self.operator == "-":
            return left - right
        if self.operator == "*":
            return left * right
        return left / (right if abs(right) > _TINY else _TINY)


_Node = _Term | _Binary


@dataclass(frozen=True, slots=True)
class Formula:
    """A parsed formula. A call gives a finite number."""

    text: str
    _tree: _Node

    def __call__(self, frequency: float, clock: float, length: float, depth: float = 1.0) -> float:
        names = {"frequency": frequency, "clock": clock, "length": length, "depth": depth}
        return max(-_BOUND, min(_BOUND, self._tree.value(names)))


def parse_formula(text: str) -> Formula:
    """Parse `text`. ConfigurationError names the wrong place and the valid words."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(f"formula: {len(text)} characters, at most {MAX_CHARACTERS} are allowed")
    terms, operators = _scan(text)
    if len(terms) > MAX_TERMS:
        raise ConfigurationError(f"formula {text!r}: {len(terms)} terms, at most {MAX_TERMS} are allowed")
    return Formula(text, _sum(terms, operators))


def _scan(text: str) -> tuple[list[_Term], list[str]]:
    terms: list[_Term] = []
    operators: list[str] = []
    end = len(text.rstrip())
    place = 0
    while place < end or len(terms) == len(operators):
        match = _TOKEN.match(text, place)
        wants_term = len(terms) == len(operators)
        if match is None or wants_term == bool(match["operator"]):
            found = repr(text[place:].strip()[:20]) if place < end else "the end"
            raise ConfigurationError(f"formula {text!r}: found {found} at character {place + 1}; {_HELP}")
        if match["operator"]:
            operators.append(match["operator"])
        else:
            terms.append(_term(match, text))
        place = match.end()
    return terms, operators


def _term(match: re.Match[str], text: str) -> _Term:
    if match["number"]:
        return _Term("", float(match["number"]))
    name = _NAMES.get(match["name"])
    if name is None:
        raise ConfigurationError(f"formula {text!r}: unknown name {match['name']!r}; {_HELP}")
    return _Term(name)


def _sum(terms: list[_Term], operators: list[str]) -> _Node:
    """Build the tree from left to right, products before sums."""
    tree: _Node | None = None
    joint = "+"
    place = 0
    while place < len(terms):
        product: _Node = terms[place]
        while place < len(operators) and operators[place] in "*/":
            product = _Binary(operators[place], product, terms[place + 1])
            place += 1
        tree = product if tree is None else _Binary(joint, tree, product)
        joint = operators[place] if place < len(operators) else "+"
        place += 1
    assert tree is not None  # _scan returns at least one term
    return tree
