"""Follows one real request or reconcile through the product's modules, by a trace of its calls.

A walk starts with a callback, such as `data_received` of a connection. A *return* is a call into a module that the same
walk entered before the caller's module. The creation of an object is no call into its module. No module is left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Page", "Trace", "follow", "page_of"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
_ROW = re.compile(r"^\| \d+ \| \[.+?\]\((.+?)\) \| `(\w+)` \| (yes|–) \| .+ \|$", re.MULTILINE)
_COUNT = re.compile(r"^\| ([\w ,]+?) \| (\d+) \| (\d+) \| (reached|missed) \|$", re.MULTILINE)


@dataclass
class Page:
    """A section of the architecture page.

    entries: the modules of its path, in order, with the function that it names. deciding: how many of them it marks as
    modules that decide. counts: its numbers by name, each with the target and whether the page calls that reached.
    """

    entries: dict[str, str]
    deciding: int
    counts: dict[str, tuple[int, int, bool]]


def page_of(heading: str) -> Page:
    """The path under a heading. Modules are paths from the repository's root."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    entries: dict[str, str] = {}
    deciding = 0
    for path, entry, decides in _ROW.findall(section):
        file = (PAGE.parent / path).resolve()
        entries[str(file.relative_to(ROOT))] = entry
        deciding += decides == "yes"
    counts = {name: (int(now), int(target), word == "reached") for name, now, target, word in _COUNT.findall(section)}
    return Page(entries, deciding, counts)


@dataclass
class Trace:
    """calls: for each walk, the modules on the stack of each call, outermost first. functions: those that were called,
    by module."""

    calls: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    functions: dict[str, set[str]] = field(default_factory=dict)

    def modules(self) -> list[str]:
        """All modules that were entered, in the order of the first call."""
        return list(dict.fromkeys(stack[-1] for walk in self.calls.values() for stack in walk))

    def edges(self) -> dict[str, list[tuple[str, str]]]:
        """For each walk, the calls from one module into another, each once."""
        found: dict[str, list[tuple[str, str]]] = {}
        for walk, calls in self.calls.items():
            pairs = {stack[-2:]: None for stack in calls if len(stack) > 1 and stack[-1] != stack[-2]}
            found[walk] = [(caller, called) for caller, called in pairs]
        return found

    def returns(self) -> list[tuple[str, str]]:
        """The calls back into a module that the same walk entered before."""
        found = []
        for walk, pairs in self.edges().items():
            order = list(dict.fromkeys([walk.rpartition(":")[0], *(module for pair in pairs for module in pair)]))
            found += [(a, b) for a, b in pairs if order.index(b) < order.index(a)]
        return found


@contextmanager
def follow(
    starts: set[str], folders: tuple[str, ...], libraries: tuple[str, ...], excluded: frozenset[str] = frozenset()
) -> Iterator[Trace]:
    """Traces the calls of this thread that one of `starts` (`path:function`) caused.

    folders: their modules are followed.
    libraries: further folders. Of them a module counts if a module of `folders` calls it.
    excluded: functions (`path:function`). They and the calls that they cause are left out.
    """
    trace = Trace()
    names: dict[str, str | None] = {}

    def module(frame: FrameType) -> str | None:
        file = frame.f_code.co_filename
        if file not in names:
            name = file.removeprefix(f"{ROOT}/")
            names[file] = name if name.startswith(folders + libraries) else None
        return names[file]

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_name == "__init__" or module(frame) is None:
            return
        stack: list[str] = []
        walk = None
        current: FrameType | None = frame
        while current is not None:
            name = module(current)
            if name is not None:
                stack.append(name)
                function = f"{name}:{current.f_code.co_name}"
                if function in excluded:
                    return
                if function in starts:
                    walk = function
            current = current.f_back
        stack.reverse()
        behind = [name for name in stack[:-1] if name.startswith(libraries)]
        if walk is None or (behind and behind[0] != stack[-1]):
            return
        trace.calls.setdefault(walk, []).append(tuple(stack))
        trace.functions.setdefault(stack[-1], set()).add(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        yield trace
    finally:
        sys.setprofile(None)
