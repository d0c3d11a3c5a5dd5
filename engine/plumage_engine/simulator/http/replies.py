"""Completion objects as bytes: whole, and as the events of a stream.

A stream's events differ only in the text, so what surrounds it is encoded once a request.
"""

from __future__ import annotations

import time
from typing import Any

import orjson

__all__ = ["Reply"]

_DONE = b"data: [DONE]\n\n"


class Reply:
    """The frame of one answer: id, model, and whether it is a chat's."""

    def __init__(self, request_id: str, model: str, *, chat: bool) -> None:
        self._chat = chat
        self._head = {"id": request_id, "object": "", "created": int(time.time()), "model": model}
        self._before, self._after = b"", b""

    def whole(self, text: str, finish_reason: str, stop_reason: str | None, usage: dict[str, Any]) -> bytes:
        """The body of an answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        choice["stop_reason"] = stop_reason
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            choice["text"] = text
        kind = "chat.completion" if self._chat else "text_completion"
        return orjson.dumps({**self._head, "object": kind, "choices": [choice], "usage": usage})

    def accepted(self) -> bytes:
        """Events of a stream before its first token."""
        return b""

    def opening(self, usage: dict[str, Any] | None = None) -> bytes:
        """The first event of a chat stream; empty for completions."""
        if not self._chat:
            return b""
        return self._event([self._choice({"role": "assistant", "content": ""}, None, None)], **_beside(usage))

    def delta(self, text: str, usage: dict[str, Any] | None = None) -> bytes:
        """More text; usage: of the answer so far, where each event has it."""
        if usage is not None:
            return self._event([self._choice({"content": text} if self._chat else text, None, None)], usage=usage)
        if not self._before:
            mark = "\x00"
            event = self._event([self._choice({"content": mark} if self._chat else mark, None, None)])
            self._before, self._after = event.split(orjson.dumps(mark))
        return self._before + orjson.dumps(text) + self._after

    def last(
        self, text: str, finish_reason: str, stop_reason: str | None, usage: dict[str, Any] | None = None
    ) -> bytes:
        """The last text, with the reason for the end."""
        delta = {"content": text} if self._chat else text
        return self._event([self._choice(delta, finish_reason, stop_reason)], **_beside(usage))

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The trailing event without choices."""
        return self._event([], usage=usage)

    def end(self) -> bytes:
        """The mark after a stream's last event."""
        return _DONE

    def _choice(self, delta: dict[str, str] | str, finish: str | None, stop: str | None) -> dict[str, Any]:
        name = "delta" if self._chat else "text"
        return {"index": 0, name: delta, "logprobs": None, "finish_reason": finish, "stop_reason": stop}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return b"data: " + orjson.dumps({**self._head, "object": kind, "choices": choices, **more}) + b"\n\n"


def _beside(usage: dict[str, Any] | None) -> dict[str, Any]:
    return {} if usage is None else {"usage": usage}
