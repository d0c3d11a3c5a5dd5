"""The completion endpoints as a bare ASGI application: bytes in, events out, with a watch for the client's disconnect.

As in vLLM, status and headers of a stream go out when the request is accepted, the first body byte with the first
token. Bad requests are answered before that. A client that goes away aborts its request in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from plumage.errors import ConfigurationError
from plumage_engine.simulator.http.prompts import Prompt, Prompts
from plumage_engine.simulator.http.protocol import ApiError, Generation, StreamUsage, read_body, read_generation
from plumage_engine.simulator.http.replies import Reply
from plumage_engine.simulator.job import Job
from plumage_engine.simulator.runner import Runner

__all__ = ["Completions", "Receive", "Scope", "Send", "leaves", "read", "respond"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LOG = logging.getLogger(__name__)
_JSON = (b"content-type", b"application/json")
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_MOST_REQUEST_ID = 128
_BODY_SECONDS = 30.0


class ClientGoneError(Exception):
    """The client closed the connection before its request was read."""


async def read(receive: Receive, most: int) -> bytes:
    """The request's body; ApiError 413 past `most` bytes, 408 when it does not come."""
    data = b""
    while True:
        message = await _next(receive)
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part: bytes = message.get("body", b"")
        data += part
        if len(data) > most:
            raise ApiError(413, f"the body is larger than {most} bytes", kind="RequestTooLarge")
        if not message.get("more_body"):
            return data


async def _next(receive: Receive) -> MutableMapping[str, Any]:
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await receive()
    except TimeoutError:
        raise ApiError(408, f"no more of the body came for {_BODY_SECONDS:g} seconds", kind="Timeout") from None


async def leaves(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Answers with a whole response."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


class Completions:
    """/v1/chat/completions or /v1/completions. force_usage: vLLM's --enable-force-include-usage.

    A subclass may read another API's bodies (`_read`) and answer in its form (`_reply`, `_error_body`)."""

    def __init__(
        self,
        runner: Runner,
        prompts: Prompts,
        *,
        chat: bool,
        max_in_flight: int,
        max_body_bytes: int,
        force_usage: bool = False,
    ) -> None:
        self._runner = runner
        self._prompts = prompts
        self._chat = chat
        self._max_in_flight = max_in_flight
        self._max_body_bytes = max_body_bytes
        self._force_usage = force_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            job, generation = await self._accept(scope, receive)
        except ClientGoneError:
            return
        except ApiError as error:
            retry = [(b"retry-after", b"1")] if error.status == 503 else []
            await respond(send, error.status, self._error_body(error), *retry)
            return
        await self._answer(job, generation, receive, send)

    async def _answer(self, job: Job, generation: Generation, receive: Receive, send: Send) -> None:
        """Sends the answer of an accepted request. A client that leaves aborts it."""
        watch = asyncio.create_task(self._watch(receive, job))
        reply = self._reply(job, generation)
        try:
            usage = StreamUsage.EVERY if self._force_usage else generation.stream_usage
            await (self._stream(job, reply, send, usage) if job.stream else self._whole(job, reply, send))
        finally:
            watch.cancel()
            if not job.done:
                self._runner.abort(job)

    async def _accept(self, scope: Scope, receive: Receive) -> tuple[Job, Generation]:
        self._check_load()
        body = await read(receive, self._max_body_bytes)
        generation = self._read(body, scope)
        prompt = self._prompts.read(generation)
        token_ids = await (self._tokenize_long(prompt, receive) if prompt.long else self._prompts.token_ids(prompt))
        job = self._prompts.job(generation, token_ids, self._request_id(scope))
        try:
            self._runner.submit(job)
        except ConfigurationError as error:
            raise ApiError(400, str(error)) from error
        return job, generation

    def _read(self, data: bytes, scope: Scope) -> Generation:
        """What the body asks for; ApiError names the wrong field."""
        return read_generation(read_body(data), chat=self._chat)

    def _reply(self, job: Job, generation: Generation) -> Reply:
        return Reply(str(job.request.request_id), generation.model, chat=self._chat)

    def _error_body(self, error: ApiError) -> bytes:
        return error.body()

    def _check_load(self) -> None:
        if self._runner.draining:
            raise ApiError(503, "this engine is draining; send the request to another", kind="ServiceUnavailable")
        if len(self._runner) + self._prompts.encoding >= self._max_in_flight:
            raise ApiError(503, f"{self._max_in_flight} requests are in flight already", kind="ServiceUnavailable")

    async def _tokenize_long(self, prompt: Prompt, receive: Receive) -> list[int]:
        """The ids of a long prompt. It stops when the client disconnects. Afterwards it checks again whether the
        engine takes requests."""
        reading = asyncio.ensure_future(self._prompts.token_ids(prompt))
        leaving = asyncio.ensure_future(leaves(receive))
        try:
            await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise ClientGoneError
            token_ids = reading.result()
            self._check_load()
            return token_ids
        finally:
            reading.cancel()
            leaving.cancel()

    def _request_id(self, scope: Scope) -> str:
        """vLLM's form, with the client's own id inside where it sent one that is not in use."""
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")[:_MOST_REQUEST_ID]
        kind = "chatcmpl-" if self._chat else "cmpl-"
        return kind + given if given and kind + given not in self._runner.engine else kind + uuid.uuid4().hex

    async def _watch(self, receive: Receive, job: Job) -> None:
        await leaves(receive)
        if not job.done:
            self._runner.abort(job)

    async def _whole(self, job: Job, reply: Reply, send: Send) -> None:
        while not (job.done or job.gone):
            await job.changed.wait()
            job.changed.clear()
        if not job.gone:
            answer = job.answer
            text = "".join(answer.texts)
            await respond(send, 200, reply.whole(text, answer.finish_reason, answer.stop_reason, _usage(job)))

    async def _stream(self, job: Job, reply: Reply, send: Send, usage: StreamUsage) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        if accepted := reply.accepted():
            await send({"type": "http.response.body", "body": accepted, "more_body": True})
        sent = 0
        while not (job.done or job.gone):
            await job.changed.wait()
            job.changed.clear()
            if job.emitted > sent and not job.gone:
                data = self._opening(job, reply, usage) if sent == 0 else b""
                data += self._events(job, reply, sent, usage)
                sent = job.emitted
                await send({"type": "http.response.body", "body": data, "more_body": not job.done})

    def _opening(self, job: Job, reply: Reply, usage: StreamUsage) -> bytes:
        return reply.opening(self._counts(job, 0) if usage is StreamUsage.EVERY else None)

    def _events(self, job: Job, reply: Reply, sent: int, usage: StreamUsage) -> bytes:
        """The tokens after the first `sent`, as one delta. At the end of the job also the usage and the final mark."""
        text = "".join(job.answer.texts[sent : job.emitted])
        counts = self._counts(job, job.emitted) if usage is StreamUsage.EVERY else None
        if not job.done:
            return reply.delta(text, counts)
        last = reply.last(text, job.answer.finish_reason, job.answer.stop_reason, counts)
        return last + (b"" if usage is StreamUsage.NONE else reply.usage(_usage(job))) + reply.end()

    def _counts(self, job: Job, completion: int) -> dict[str, Any]:
        """The usage beside a delta: without details, which a chat's events name."""
        prompt = job.request.prompt_tokens
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
        return {**counts, "completion_tokens_details": None} if self._chat else counts


def _usage(job: Job) -> dict[str, Any]:
    prompt, completion = job.request.prompt_tokens, len(job.answer.token_ids)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens or 0},
    }
