"""Stored responses of the simulator, as in vLLM with `VLLM_ENABLE_RESPONSES_API_STORE=1`: read, streamed, cancelled.

vLLM never frees what it stores. Here the oldest of more than `MOST` responses is dropped.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from plumage_engine.simulator.http.protocol import ApiError

__all__ = ["MOST", "StoredResponse", "StoredResponses"]

MOST: Final = 1024
_STREAM_HEAD: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]
_OPEN: Final = ("queued", "in_progress")


class StoredResponse:
    """One response. `response`: as it is now. `messages`: the chat that it answered. `events`: of its stream, if it
    runs in the background. `store`: where it is put once it is finished."""

    def __init__(self, response: Mapping[str, Any], messages: list[dict[str, Any]]) -> None:
        self.response = dict(response)
        self.messages = messages
        self.text = ""
        self.events: list[bytes] | None = None
        self.store: StoredResponses | None = None
        self.changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._abort: Callable[[], None] | None = None

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The chat up to the end of this response. Instructions count for one response only, as in vLLM."""
        answer = [{"role": "assistant", "content": self.text}] if self.text else []
        return [*(one for one in self.messages if one.get("role") != "system"), *answer]

    def finish(self, response: Mapping[str, Any], text: str) -> None:
        """Stores the complete answer. A response that was cancelled stays so."""
        if self.response.get("status") != "cancelled":
            self.response, self.text = dict(response), text
        if self.store is not None:
            self.store.add(self)

    # -- in the background --------------------------------------------------------------------------------------------

    def run(self, answer: Coroutine[Any, Any, None], abort: Callable[[], None]) -> None:
        """Runs the request without a client."""
        self.events, self._abort = [], abort
        self._task = asyncio.create_task(self._run(answer))

    async def _run(self, answer: Coroutine[Any, Any, None]) -> None:
        try:
            await answer
        finally:
            self._task = None
            async with self.changed:
                self.changed.notify_all()

    async def collect(self, message: MutableMapping[str, Any]) -> None:
        """Takes the place of a client: keeps the events of a stream."""
        async with self.changed:
            if self.events is not None:
                self.events += [
                    event + b"\n\n" for event in message.get("body", b"").split(b"\n\n") if event[:6] == b"event:"
                ]
            self.changed.notify_all()

    def cancel(self) -> None:
        """Raises ApiError, as vLLM does, unless it is running in the background."""
        if self.response.get("status") not in _OPEN or self._abort is None:
            message = "Cannot cancel a synchronous response."
            raise ApiError(400, message, kind="invalid_request_error", param="response_id")
        self.response = {**self.response, "status": "cancelled"}
        self._abort()

    async def next_events(self, at: int) -> list[bytes]:
        """Returns the events from `at` on, once there are some; none at the end."""
        events = self.events if self.events is not None else []
        async with self.changed:
            while len(events) <= at and self._task is not None:
                await self.changed.wait()
        return events[at:]

    async def send_events(self, send: Send, at: int, leaving: asyncio.Future[None]) -> None:
        """Sends the stream from its event `at` on, until its end or until the client leaves."""
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEAD})
        while not leaving.done():
            coming = asyncio.ensure_future(self.next_events(at))
            await asyncio.wait((coming, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                return
            events = coming.result()
            at += len(events)
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": bool(events)})
            if not events:
                return


class StoredResponses:
    """The routes of `/v1/responses/{response_id}`."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()

    def add(self, one: StoredResponse) -> None:
        self._responses[str(one.response["id"])] = one
        while len(self._responses) > MOST:
            self._responses.popitem(last=False)

    def find(self, name: str) -> StoredResponse:
        """Raises vLLM's 404."""
        found = self._responses.get(name)
        if found is None:
            message = f"Response with id '{name}' not found."
            raise ApiError(404, message, kind="invalid_request_error", param="response_id")
        return found

    async def read(self, request: Request) -> Response:
        found = self.find(request.path_params["name"])
        if request.query_params.get("stream", "").lower() not in ("true", "1"):
            return Response(orjson.dumps(found.response), media_type="application/json")
        if found.events is None:
            message = f"Unknown response_id: {found.response['id']}"
            raise ApiError(400, message, param="response_id")
        return StreamingResponse(_events(found, _after(request)), media_type="text/event-stream")

    async def cancel(self, request: Request) -> Response:
        found = self.find(request.path_params["name"])
        found.cancel()
        return Response(orjson.dumps(found.response), media_type="application/json")


def _after(request: Request) -> int:
    given = request.query_params.get("starting_after", "-1")
    try:
        return max(0, int(given) + 1)
    except ValueError:
        raise ApiError(
            400, f"starting_after must be a whole number, got {given[:64]!r}", param="starting_after"
        ) from None


async def _events(found: StoredResponse, at: int) -> Any:
    while events := await found.next_events(at):
        at += len(events)
        yield b"".join(events)
