"""Asks an engine for its token usage, and reads what it reports while its answer passes through.

Engines report token counts in the `usage` object: at the end of a JSON body, or in the last event of a stream. The
router asks for that event in every stream (`stream_options.include_usage`). It removes what the client did not ask for:
the last event, and the `usage` of events with choices (`continuous_usage_stats`). Patterns find the numbers without
parsing whole answers. Every quote inside a JSON string is escaped, so the patterns cannot match a model's own text. In
Anthropic's answers a tool's input is JSON too, so they are read from the last `usage` on. So are those of the Responses
API, which repeat the request's tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import orjson

__all__ = ["ASKS_FOR_USAGE", "JsonTail", "StreamFilter", "Usage", "WantedUsage", "stream_options", "wanted_usage"]

ASKS_FOR_USAGE: Final = b'"stream_options":{"include_usage":true}'
"""The field of a stream whose client set no options."""

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})')
_OUTPUT = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,9})')
_INPUT = b'"input_tokens"'
_ANTHROPIC = {name: re.compile(rb'"%b"\s*:\s*(\d{1,9})' % name) for name in (
    b"input_tokens", b"output_tokens", b"cache_read_input_tokens", b"cache_creation_input_tokens",
)}  # fmt: skip
_INPUT_DETAILS = b'"input_tokens_details"'  # only in the Responses API
_EVENT_BOUND = 1 << 20  # bytes; a longer event passes through without being read
_TAIL = 4096
_COLON: Final = 0x3A
_ZERO: Final = 0x30
_DIGITS: Final = 9  # of a number, as in the patterns
_FIRST_TOKEN = re.compile(rb"^event:(?! ?response\.(?:created|in_progress)\r?\n)[^\n]*\n", re.M)


class WantedUsage(Enum):
    """The usage that a client asked for in a stream."""

    NONE = "none"
    LAST = "last"  # include_usage: a separate event at the end
    EVERY = "every"  # continuous_usage_stats as well: in each event too


def wanted_usage(options: Mapping[str, Any] | None) -> WantedUsage:
    """Returns the usage that a client's `stream_options` ask for."""
    if not options or options.get("include_usage") is not True:
        return WantedUsage.NONE
    return WantedUsage.EVERY if options.get("continuous_usage_stats") is True else WantedUsage.LAST


def stream_options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the client's `stream_options` plus `include_usage`; None if the client set it.

    Without `include_usage` an engine ignores `continuous_usage_stats`, so that option is removed.
    """
    if wanted_usage(options) is not WantedUsage.NONE:
        return None
    kept = {name: value for name, value in (options or {}).items() if name != "continuous_usage_stats"}
    return {**kept, "include_usage": True}


@dataclass(slots=True, init=False)
class Usage:
    """Token counts of the engine; None for those that it did not report."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None

    def __init__(
        self, prompt_tokens: int | None = None, cached_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        self.prompt_tokens, self.cached_tokens, self.output_tokens = prompt_tokens, cached_tokens, output_tokens

    def read(self, data: bytes) -> None:
        """Reads the counts in `data`."""
        if _INPUT in data:
            details = data.rfind(_INPUT_DETAILS)
            at = data.rfind(b'"usage"', 0, None if details < 0 else details)  # what is before it may have any key
            if at >= 0 and details >= 0:
                self._read_responses(data[at:])
            elif at >= 0:
                self._read_anthropic(data[at:])
            return
        self.prompt_tokens = _last(_PROMPT, b'"prompt_tokens"', data, self.prompt_tokens)
        self.cached_tokens = _last(_CACHED, b'"cached_tokens"', data, self.cached_tokens)
        self.output_tokens = _last(_OUTPUT, b'"completion_tokens"', data, self.output_tokens)

    def _read_responses(self, data: bytes) -> None:
        """The Responses API counts cached tokens among `input_tokens`."""
        self.prompt_tokens = _last(_ANTHROPIC[b"input_tokens"], _INPUT, data, self.prompt_tokens)
        self.output_tokens = _last(_ANTHROPIC[b"output_tokens"], b'"output_tokens"', data, self.output_tokens)
        self.cached_tokens = _last(_CACHED, b'"cached_tokens"', data, self.cached_tokens)

    def _read_anthropic(self, data: bytes) -> None:
        """Anthropic's `input_tokens` are those that were neither read from a cache nor written to one."""

        def count(name: bytes) -> int | None:
            return _last(_ANTHROPIC[name], b'"%b"' % name, data, None)

        cached, created = count(b"cache_read_input_tokens"), count(b"cache_creation_input_tokens")
        fresh, output = count(b"input_tokens"), count(b"output_tokens")
        if fresh is not None:
            self.prompt_tokens = fresh + (cached or 0) + (created or 0)
        self.cached_tokens = cached if cached is not None else self.cached_tokens
        self.output_tokens = output if output is not None else self.output_tokens


def _last(pattern: re.Pattern[bytes], name: bytes, data: bytes, known: int | None) -> int | None:
    """The number of the last match. A search from the end is faster than one from the start."""
    at = data.rfind(name)
    if at < 0:
        return known
    number = _number(data, at + len(name))
    if number >= 0:
        return number
    found = pattern.match(data, at)
    if found is not None:
        return int(found[1])
    earlier = pattern.findall(data)  # the last one is not a number
    return int(earlier[-1]) if earlier else known


def _number(data: bytes, colon: int) -> int:
    """The number right behind a colon, of at most nine digits; -1 if there is none. As engines write it: a pattern
    takes five times as long."""
    number, first = 0, colon + 1
    end = min(len(data), first + _DIGITS)
    if first >= end or data[colon] != _COLON:
        return -1
    for at in range(first, end):
        digit = data[at] - _ZERO
        if not 0 <= digit <= 9:
            return number if at > first else -1
        number = 10 * number + digit
    return number


class JsonTail:
    """Passes a JSON body through, and reads the usage from its last bytes."""

    __slots__ = ("_tail", "usage")

    def __init__(self) -> None:
        self.usage = Usage()
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        tail = self._tail
        self._tail = (tail + data)[-_TAIL:] if tail and len(data) < _TAIL else data
        return data

    def end(self) -> bytes:
        self.usage.read(self._tail[-_TAIL:])
        self._tail = b""
        return b""


class StreamFilter:
    """Filters server-sent events that arrive in pieces of any size.

    `feed` returns the bytes for the client. They are none until the first event that is not a comment, then whole
    events with the usage that is `wanted`. named: of the Responses API, where two events come before any token; they
    are held back.
    """

    __slots__ = ("_holds", "_rest", "_searched", "_started", "_wanted", "usage")

    def __init__(self, wanted: WantedUsage, *, named: bool = False) -> None:
        self.usage = Usage()
        self._wanted = wanted
        self._holds = named
        self._searched = 0  # bytes of the held events that have been searched
        self._rest = b""
        self._started = False

    def feed(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if not self._started:
            data = self._skip_comments(data)
            if not data:
                return data
        if self._holds:
            if len(data) <= _EVENT_BOUND and _FIRST_TOKEN.search(data, self._searched) is None:
                self._rest, self._searched = data, data.rfind(b"\n") + 1
                return b""
            self._holds = False
        if data.endswith(b"\n\n"):
            return data if b'"usage"' not in data else self._events(data)
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4)
        if end < 4:
            end = 0
        if len(data) - end > _EVENT_BOUND:
            return data
        self._rest = data[end:]
        return self._events(data[:end])

    def end(self) -> bytes:
        """Returns the rest, if the stream ends inside an event."""
        rest, self._rest = self._rest, b""
        return rest

    def _skip_comments(self, data: bytes) -> bytes:
        """Removes leading comments and empty lines. An incomplete line is kept as the rest."""
        while data:
            line_end = data.find(b"\n")
            if line_end < 0 and (data[:1] == b":" or data == b"\r"):
                self._rest = data[:1]  # one byte is enough to recognize the comment
                return b""
            if data[:1] != b":" and data[:line_end].strip() != b"":
                self._started = True
                return data
            if line_end < 0:
                self._started = True
                return data
            data = data[line_end + 1 :]
        return data

    def _events(self, data: bytes) -> bytes:
        """Reads the usage of whole events, and removes what is not wanted."""
        if _USAGE.search(data) is None:
            return data
        separator = b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n"
        kept = (self._filtered(event) for event in data.split(separator))
        return separator.join([event for event in kept if event is not None])

    def _filtered(self, event: bytes) -> bytes | None:
        """Reads an event's usage. Returns the event for the client; None to drop it."""
        if _USAGE.search(event) is None:
            return event
        if _INPUT_DETAILS in event:
            self.usage.read(event)
            return event
        payload = b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
        try:
            message = orjson.loads(payload)
        except orjson.JSONDecodeError:
            return event
        if not isinstance(message, dict) or not isinstance(message.get("usage"), dict):
            return event
        self.usage.read(payload[payload.rfind(b'"usage"') :])
        if message.get("choices") == []:
            return None if self._wanted is WantedUsage.NONE else event
        return event if self._wanted is WantedUsage.EVERY else _without_usage(event, message)


def _without_usage(event: bytes, message: dict[str, Any]) -> bytes:
    """The event without its usage; its other lines stay."""
    del message["usage"]
    lines = [line for line in event.splitlines() if not line.startswith(b"data:")]
    return (b"\r\n" if b"\r\n" in event else b"\n").join([*lines, b"data: " + orjson.dumps(message)])
