"""The Responses API of the simulator, as vLLM 0.32 serves it (`entrypoints/openai/responses`).

A request becomes the chat that vLLM makes of it (`plumage.rendering.responses`), and runs as a chat completion does.
Here are the rest of its fields, its answers and the events of its streams. As in vLLM, nothing is stored unless
`VLLM_ENABLE_RESPONSES_API_STORE=1` is in the engine's environment (`stored_responses.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import orjson

from plumage.rendering.errors import RequestShapeError
from plumage.rendering.responses import responses_as_chat
from plumage_engine.simulator.http.completions import Completions, Receive, Scope, Send, leaves, respond
from plumage_engine.simulator.http.prompts import Prompts
from plumage_engine.simulator.http.protocol import ApiError, Generation, StreamUsage, read_body, read_generation
from plumage_engine.simulator.http.replies import Reply
from plumage_engine.simulator.http.stored_responses import StoredResponse, StoredResponses
from plumage_engine.simulator.job import Job
from plumage_engine.simulator.runner import Runner

__all__ = ["ResponseReply", "Responses"]

_PASSED = {
    "max_output_tokens": "max_tokens", "stop": "stop", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
    "stream": "stream", "seed": "seed", "ignore_eos": "ignore_eos",
}  # fmt: skip
_USAGE = {"include_usage": True}
_ECHOED: dict[str, Any] = {
    "incomplete_details": None, "instructions": None, "metadata": None, "parallel_tool_calls": True,
    "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "background": False,
    "max_output_tokens": None, "max_tool_calls": None, "previous_response_id": None, "prompt": None, "reasoning": None,
    "service_tier": "auto", "text": None, "top_logprobs": None, "truncation": "disabled", "user": None,
    "presence_penalty": None, "frequency_penalty": None,
}  # fmt: skip
"""The request's fields in an answer, with their defaults."""


@dataclass(frozen=True, slots=True)
class _Asked(Generation):
    """response: the fields of the answer that are known before it. kept: where the response is stored; None if it is
    not."""

    response: Mapping[str, Any]
    kept: StoredResponse | None


class Responses(Completions):
    """/v1/responses, and what is stored of it. stored: None stores nothing."""

    def __init__(
        self, runner: Runner, prompts: Prompts, *, stored: StoredResponses | None = None, **limits: Any
    ) -> None:
        super().__init__(runner, prompts, chat=True, **limits)
        self._stored = stored

    def _read(self, data: bytes, scope: Scope) -> Generation:
        return _generation(read_body(data), self._stored)

    def _reply(self, job: Job, generation: Generation) -> Reply:
        assert isinstance(generation, _Asked)
        return ResponseReply(generation.response, generation.kept)

    async def _answer(self, job: Job, generation: Generation, receive: Receive, send: Send) -> None:
        assert isinstance(generation, _Asked)
        kept, stored = generation.kept, self._stored
        if kept is None or stored is None or not generation.response["background"]:
            await super()._answer(job, generation, receive, send)
            return
        reply = ResponseReply(generation.response, kept)
        kept.response = {**generation.response, "status": "queued", "output": [], "usage": None}
        stored.add(kept)
        run = self._stream(job, reply, kept.collect, StreamUsage.LAST) if job.stream else self._whole(
            job, reply, kept.collect
        )  # fmt: skip
        kept.run(run, lambda: self._runner.abort(job))
        if not job.stream:
            await respond(send, 200, orjson.dumps(kept.response))
            return
        leaving = asyncio.create_task(leaves(receive))
        try:
            await kept.send_events(send, 0, leaving)
        finally:
            leaving.cancel()


class ResponseReply(Reply):
    """The frame of one response. A stream's methods are called in the order of its events. kept: gets the finished
    response."""

    def __init__(self, response: Mapping[str, Any], kept: StoredResponse | None = None) -> None:
        super().__init__(str(response["id"]), str(response["model"]), chat=True)
        self._kept = kept
        self._response = dict(response)
        self._item = f"msg_{uuid.uuid4().hex}"
        self._sequence = 0
        self._text: list[str] = []
        self._finish_reason = "stop"

    def whole(self, text: str, finish_reason: str, stop_reason: str | None, usage: dict[str, Any]) -> bytes:
        return orjson.dumps(self._finished(text, finish_reason, usage))

    def accepted(self) -> bytes:
        started = {**self._response, "status": "in_progress", "output": [], "usage": None}
        return self._named("response.created", response=started) + self._named(
            "response.in_progress", response=started
        )  # fmt: skip

    def opening(self, usage: dict[str, Any] | None = None) -> bytes:
        return b""

    def delta(self, text: str, usage: dict[str, Any] | None = None) -> bytes:
        """More text, after the start of its item; nothing for no text."""
        if not text:
            return b""
        start = b"" if self._text else self._start()
        self._text.append(text)
        return start + self._at_part("response.output_text.delta", delta=text, logprobs=[])

    def last(
        self, text: str, finish_reason: str, stop_reason: str | None, usage: dict[str, Any] | None = None
    ) -> bytes:
        self._finish_reason = finish_reason
        return self.delta(text)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The end of the item and the whole response."""
        whole = "".join(self._text)
        end = b""
        if self._text:
            item = self._message(whole)
            end = self._at_part("response.output_text.done", text=whole, logprobs=[])
            end += self._at_part("response.content_part.done", part=item["content"][0])
            end += self._named("response.output_item.done", item=item, output_index=0)
        return end + self._named("response.completed", response=self._finished(whole, self._finish_reason, usage))

    def end(self) -> bytes:
        return b""

    def _start(self) -> bytes:
        item = {**self._message(""), "content": [], "status": "in_progress"}
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        added = self._named("response.output_item.added", item=item, output_index=0)
        return added + self._at_part("response.content_part.added", part=part)

    def _message(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
        return {"id": self._item, "type": "message", "role": "assistant", "status": "completed", "content": [part]}

    def _finished(self, text: str, finish_reason: str, usage: Mapping[str, Any]) -> dict[str, Any]:
        status = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        if finish_reason != "length":
            status = {"status": "completed"}
        output = [self._message(text)] if text else []
        response = {**self._response, **status, "output": output, "usage": _usage_of(usage)}
        if self._kept is not None:
            self._kept.finish(response, text)
        return response

    def _at_part(self, name: str, **more: Any) -> bytes:
        return self._named(name, item_id=self._item, output_index=0, content_index=0, **more)

    def _named(self, name: str, **more: Any) -> bytes:
        event = {"type": name, "sequence_number": self._sequence, **more}
        self._sequence += 1
        return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


def _usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """A chat's usage in the form of the Responses API."""
    given, completion = usage["prompt_tokens"], usage["completion_tokens"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
        "total_tokens": given + completion,
    }


def _generation(body: Mapping[str, Any], stored: StoredResponses | None) -> _Asked:
    """What a request asks for, as a chat. ApiError names the wrong field."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise ApiError(400, "model must be a non-empty string", param="model")
    keeps = stored is not None and body.get("store") is not False
    if body.get("background") and not keeps:
        message = "background needs stored responses: set VLLM_ENABLE_RESPONSES_API_STORE=1, and leave store out"
        raise ApiError(400, message, kind="invalid_request_error", param="background")
    earlier: list[dict[str, Any]] = []
    if previous := body.get("previous_response_id"):
        earlier = (StoredResponses() if stored is None else stored).find(str(previous)).conversation
    try:
        chat, _ = responses_as_chat(body)
    except RequestShapeError as error:
        raise ApiError(400, str(error), param=error.field) from error
    own = chat["messages"]
    first = 1 if body.get("instructions") else 0  # those of earlier responses do not count any more
    chat["messages"] = messages = [*own[:first], *earlier, *own[first:]]
    chat.update((name, body[ours]) for ours, name in _PASSED.items() if body.get(ours) is not None)
    if chat.get("stream"):
        chat["stream_options"] = _USAGE
    generation = read_generation(chat, chat=True)
    given = {name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()}
    response = {
        "id": body.get("request_id") or f"resp_{uuid.uuid4().hex}", "object": "response",
        "created_at": int(time.time()), "model": body["model"], **given,
    }  # fmt: skip
    kept = StoredResponse(response, messages) if keeps else None
    if kept is not None and stored is not None:
        kept.store = stored
    copied = {one.name: getattr(generation, one.name) for one in fields(generation)}
    return _Asked(**copied, response=response, kept=kept)
