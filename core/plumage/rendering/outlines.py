"""Outlines: what a template prints around the texts of a conversation, so that the prompt of the next one is joined.

Most requests are plain: each message has a role and a text. If the template prints the texts without reading them, the
output around the texts depends on the roles alone. To check that, the template runs once with *opaque* texts: strings
that support concatenation and output only. Some reads become facts of the outline, which are tested again for each
conversation: `'</think>' in content` was false, `content|trim` removed nothing, a date was printed. Any other read ends
the attempt, and the shape of conversation has no outline.

An outline is used only if it gives the template's prompt for the conversation that it was made from (decisions 0074 and
0238).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Template

from plumage.rendering.contentformat import ContentFormat
from plumage.rendering.conversation import BILLING_HEADER, plain_message
from plumage.rendering.opaque import Opaque, OpaqueEnvironment, Watch, compile_opaque

__all__ = ["Outlines"]

_SHAPES = 512  # of conversations: with an outline, and seen once
_MARK = "\ue0c3plumage text %d\ue0c3"
_MARKS = re.compile("\ue0c3plumage text ([0-9]+)\ue0c3")
_ATTEMPTS = 4  # to find the outline of a shape
_FIELDS = {"role", "content"}
_STRINGS = {str}

Roles = tuple[str, ...]
Render = Callable[[Any, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class _Outline:
    """pieces: printed text, with one message's text between each two. order: the messages' indexes, None if in order.
    false, unmoved, filled: facts about texts, by message. dates: formats of the clock, and their output."""

    pieces: Sequence[str]
    order: Sequence[int] | None
    false: Sequence[tuple[int, Callable[..., bool], str]]
    unmoved: Sequence[tuple[int, Callable[..., str], tuple[str, ...]]]
    filled: Sequence[int]
    dates: Sequence[tuple[str, str]]
    size: int

    def fill(self, texts: Sequence[str], limit: int) -> str | None:
        """The prompt; None if it exceeds `limit` characters, or if these texts do not have the facts."""
        for index, holds, argument in self.false:
            if holds(texts[index], argument):
                return None
        for index, strip, arguments in self.unmoved:
            text = texts[index]
            if strip(text, *arguments) != text:
                return None
        for index in self.filled:
            if not texts[index]:
                return None
        printed = texts if self.order is None else [texts[index] for index in self.order]
        if sum(map(len, printed)) + self.size > limit:
            return None
        pieces = [*self.pieces]
        pieces[1::2] = printed
        return "".join(pieces)


class Outlines:
    """The outlines of one template under its usual variables.

    developers: whether it knows that role. limit: characters of a prompt. most: messages of a conversation.
    `used`: prompts that were joined."""

    def __init__(
        self,
        environment: OpaqueEnvironment,
        template: Template,
        wanted: ContentFormat,
        *,
        developers: bool,
        limit: int,
        most: int,
    ) -> None:
        self._environment = environment
        self._template = template
        self._wanted = wanted
        self._developers = developers
        self._limit = limit
        self._most = most
        self._known: dict[Roles, _Outline | None] = {}
        self._met: dict[Roles, int] = {}
        self.used = 0

    @classmethod
    def of(
        cls, source: str, clock: Callable[[], datetime], wanted: ContentFormat, *, developers: bool, limit: int,
        most: int,
    ) -> Outlines | None:  # fmt: skip
        """None for a template that could read texts without an error."""
        made = compile_opaque(source, clock) if most > 0 else None
        if made is None:
            return None
        return cls(*made, wanted, developers=developers, limit=limit, most=most)

    def render(self, given: list[Any], variables: Mapping[str, Any], full: Render) -> str | None:
        """The prompt of a conversation that is plain and of a known shape, else None. A shape that comes again is
        rendered in `full`, to find its outline."""
        if len(given) > self._most:
            return None
        texts, named = [], []
        try:
            for message in given:
                text = message["content"]
                if len(message) != 2 or type(text) is not str:
                    return None
                texts.append(text)
                named.append(message["role"])
            outline = self._known[tuple(named)]
        except KeyError:
            return self._meet(given, variables, full)
        except TypeError:
            return None
        if outline is None:
            return None
        if outline.dates and not self._same_dates(outline):
            del self._known[tuple(named)]
            return None
        text = outline.fill(texts, self._limit)
        self.used += text is not None
        return text

    def _same_dates(self, outline: _Outline) -> bool:
        return all(self._environment.now(format) == printed for format, printed in outline.dates)

    def _meet(self, given: list[Any], variables: Mapping[str, Any], full: Render) -> str | None:
        """A shape without an outline. An outline is made at the second request, in a few attempts, because the texts of
        one request may not have the facts."""
        if not all(map(_is_plain, given)):
            return None
        roles = tuple(message["role"] for message in given)
        times = self._met[roles] = self._met.get(roles, 0) + 1
        if len(self._met) > _SHAPES:
            self._met.clear()
        if times == 1:
            return None
        whole = full(given, variables)
        outline = self._find(roles, variables)
        filled = outline.fill([m["content"] for m in given], self._limit) if outline is not None else None
        if filled is not None or outline is None or times > _ATTEMPTS:
            self._keep(roles, outline if filled == whole else None)
        return whole

    def _keep(self, roles: Roles, outline: _Outline | None) -> None:
        if len(self._known) >= _SHAPES:
            self._known.clear()
        self._known[roles] = outline

    def _find(self, roles: Roles, variables: Mapping[str, Any]) -> _Outline | None:
        if any(map(_MARKS.search, roles)) or ("developer" in roles and not self._developers):
            return None
        watch = self._environment.watch = Watch()
        opaque = [Opaque.of(watch, _MARK % index, index) for index in range(len(roles))]
        messages = [plain_message(role, text, self._wanted) for role, text in zip(roles, opaque, strict=True)]
        try:
            pieces = self._environment.run(self._template, {**variables, "messages": messages})
            text = "".join(_bounded(pieces, self._limit))
        except Exception:  # the plain template decides about any error
            return None
        return None if watch.seen else _outline(text, watch, len(roles))


def _is_plain(message: Any) -> bool:
    return type(message) is dict and message.keys() == _FIELDS and {*map(type, message.values())} == _STRINGS


def _bounded(pieces: Iterable[str], limit: int) -> Iterable[str]:
    size = 0
    for piece in pieces:
        size += str.__len__(piece)
        if size > limit:
            raise OverflowError
        yield piece


def _outline(text: str, watch: Watch, count: int) -> _Outline:
    pieces = _MARKS.split(text)
    order = [int(index) for index in pieces[1::2]]
    return _Outline(
        pieces=pieces,
        order=None if order == list(range(count)) else order,
        false=(*((index, str.startswith, BILLING_HEADER) for index in range(count)), *watch.false),
        unmoved=tuple(watch.unmoved),
        filled=tuple(watch.filled),
        dates=tuple(watch.dates.items()),
        size=sum(map(len, pieces[::2])),
    )
