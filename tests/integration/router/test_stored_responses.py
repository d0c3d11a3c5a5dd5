"""Stored responses by id through a router on a socket: read, streamed, cancelled, and whose they are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest


def stored(name: str, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 3,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 12}  # fmt: skip
    return {"id": name, "object": "response", "created_at": 1, "model": "tiny", "output": [], "tools": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "status": "completed", "usage": usage,
            **more}  # fmt: skip


def not_found(name: str) -> dict[str, Any]:
    """What vLLM 0.32 answers (`_make_not_found_error`)."""
    message = f"Response with id '{name}' not found."
    return {"error": {"message": message, "type": "invalid_request_error", "param": "response_id", "code": 404}}


class Store:
    """Answers as one vLLM engine does that stores responses."""

    def __init__(self, kit: Any) -> None:
        self._kit = kit
        self.names: dict[str, str] = {}
        self.silent = False

    async def __call__(self, seen: Any, writer: asyncio.StreamWriter) -> None:
        method, target, _ = seen.line.split()
        path, _, query = target.partition("?")
        if path == "/v1/responses":
            name = seen.json["request_id"]
            self.names[name] = "queued" if seen.json.get("background") else "completed"
            queued = {"usage": None, "tools": seen.json.get("tools") or []}
            usage = queued if seen.json.get("background") else {}
            self._json(writer, 200, stored(name, status=self.names[name], **usage))
            return
        name, _, action = path.removeprefix("/v1/responses/").partition("/")
        if name not in self.names:
            self._json(writer, 404, not_found(name))
        elif action == "cancel":
            assert method == "POST"
            self.names[name] = "cancelled"
            self._json(writer, 200, stored(name, status="cancelled"))
        elif "stream=true" in query:
            await self._stream(name, query, writer)
        else:
            assert method == "GET"
            self._json(writer, 200, stored(name, status=self.names[name]))

    def _json(self, writer: asyncio.StreamWriter, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        head = b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (status, len(data)) + data)

    async def _stream(self, name: str, query: str, writer: asyncio.StreamWriter) -> None:
        after = int(query.partition("starting_after=")[2] or -1)
        kinds = ["response.created", "response.in_progress", "response.queued", "response.completed"]
        writer.write(self._kit.STREAM_HEAD)
        for number, kind in enumerate(kinds):
            event = {"type": kind, "sequence_number": number, "response": stored(name)}
            if number > after and not (self.silent and number == 3):
                writer.write(self._kit.chunked(f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()))
        if self.silent:
            await writer.drain()
            await asyncio.sleep(3600)
        writer.write(b"0\r\n\r\n")


async def running_with(start: Any, kit: Any, engines: int = 3, **config: Any) -> Any:
    running = await start(engines=engines, **{"policy": {"name": "RoundRobin"}, **config})
    for one in running.engines:
        one.answer = Store(kit)
    return running


async def made(running: Any, key: str = "x", **more: Any) -> tuple[str, Any]:
    """The id of a new response, and the engine that stores it."""
    sent = {"model": "tiny", "input": "hello", **more}
    got = await running.post(sent, path="/v1/responses", authorization=f"Bearer {key}")
    assert got.status == 200, got.body
    (home,) = [one for one in running.engines if got.json["id"] in one.answer.names]
    return got.json["id"], home


async def ask(running: Any, kit: Any, path: str, method: str = "GET", key: str = "x") -> Any:
    return await running.send(kit.request(b"", path=path, method=method, authorization=f"Bearer {key}"))


def client(running: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0)


async def test_openai_client_reads_streams_and_cancels_where_it_is_stored(start: Any, kit: Any) -> None:
    running = await running_with(start, kit)
    async with client(running) as user:
        for _ in range(3):
            name, home = await made(running, background=True)
            for one in running.engines:
                one.seen.clear()
            assert (await user.responses.retrieve(name)).id == name
            events = [event async for event in await user.responses.retrieve(name, stream=True, starting_after=1)]
            assert [event.sequence_number for event in events] == [2, 3]
            assert (await user.responses.cancel(name)).status == "cancelled"
            assert (await user.responses.retrieve(name)).status == "cancelled"
            assert [seen.line for seen in home.seen] == [
                f"GET /v1/responses/{name} HTTP/1.1",
                f"GET /v1/responses/{name}?stream=true&starting_after=1 HTTP/1.1",
                f"POST /v1/responses/{name}/cancel HTTP/1.1",
                f"GET /v1/responses/{name} HTTP/1.1",
            ]
            assert sum(len(one.seen) for one in running.engines) == 4


@pytest.mark.parametrize("name", ["resp_1", "x", "resp_" + "0" * 56, "resp_" + "0" * 57, "%72esp", "..%2f..%2fmetrics"])
async def test_unknown_id_has_vllms_answer_and_reaches_no_engine(start: Any, kit: Any, name: str) -> None:
    running = await running_with(start, kit)
    unquoted = {"%72esp": "resp", "..%2f..%2fmetrics": "../../metrics"}.get(name, name)
    for path, method in ((f"/v1/responses/{name}", "GET"), (f"/v1/responses/{name}/cancel", "POST")):
        got = await ask(running, kit, path, method)
        assert (got.status, got.json) == (404, not_found(unquoted))
    assert not any(one.seen for one in running.engines)
    async with client(running) as user:
        with pytest.raises(openai.NotFoundError, match="not found"):
            await user.responses.retrieve("resp_1")


async def test_engine_that_forgot_the_response_says_so_itself(start: Any, kit: Any) -> None:
    running = await running_with(start, kit)
    name, home = await made(running)
    home.answer.names.clear()
    got = await ask(running, kit, f"/v1/responses/{name}")
    assert (got.status, got.json) == (404, not_found(name))


async def test_tenant_can_not_read_or_cancel_the_response_of_another(start: Any, kit: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("team-a sk-a\nteam-b sk-b\n")
    running = await running_with(start, kit, auth={"apiKeysFile": str(keys)})
    name, home = await made(running, key="sk-a")
    home.seen.clear()
    for path, method in (
        (f"/v1/responses/{name}", "GET"),
        (f"/v1/responses/{name}?stream=true", "GET"),
        (f"/v1/responses/{name}/cancel", "POST"),
    ):
        theirs = await ask(running, kit, path, method, key="sk-b")
        assert (theirs.status, theirs.json) == (404, not_found(name))
        assert (await ask(running, kit, path, method, key="wrong")).status == 401
    assert not any(one.seen for one in running.engines)
    assert (await ask(running, kit, f"/v1/responses/{name}", key="sk-a")).status == 200


async def test_reads_count_in_no_quota_and_no_bill(start: Any, kit: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("acme sk-a\n")
    quotas = [{"tenant": "acme", "requestsPerMinute": 1, "models": ["small"]}]
    running = await running_with(
        start, kit, auth={"apiKeysFile": str(keys)}, quotas=quotas, model={"aliases": ["small"]}
    )
    name, _ = await made(running, key="sk-a", model="small")
    for _ in range(3):
        assert (await ask(running, kit, f"/v1/responses/{name}", key="sk-a")).status == 200
    (used,) = running.router.pool.usage.sums.values()
    assert (used.requests, used.prompt, used.output) == (1, 9, 3)


async def test_background_is_refused_with_keys_unless_the_pool_allows_it(start: Any, kit: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("acme sk-a\n")
    auth = {"apiKeysFile": str(keys)}
    for stream in (False, True):
        running = await running_with(start, kit, auth=auth)
        sent = {"model": "tiny", "input": "hello", "background": True, "stream": stream}
        got = await running.post(sent, path="/v1/responses", authorization="Bearer sk-a")
        assert (got.status, got.error["code"], got.error["param"]) == (400, "field_not_allowed", "background")
        assert "allowedRequestFields" in got.error["message"]
    allowed = await running_with(start, kit, auth=auth, allowedRequestFields=["background"])
    await made(allowed, key="sk-a", background=True)


async def test_tools_of_a_background_response_are_no_usage(start: Any, kit: Any) -> None:
    """The answer repeats the client's tools. Their schema may have the names of the counts."""
    running = await running_with(start, kit, engines=1)
    schema = {"prompt_tokens": 1, "completion_tokens": 0}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}, **schema}}
    await made(running, background=True, max_output_tokens=5_000, tools=[tool])
    (used,) = running.router.pool.usage.sums.values()
    assert (used.output, used.estimated) == (5_000, 1)


async def test_response_in_the_background_is_billed_by_estimate_and_teaches_nothing(start: Any, kit: Any) -> None:
    running = await running_with(start, kit, engines=1)
    await made(running, background=True, max_output_tokens=50)
    (used,) = running.router.pool.usage.sums.values()
    assert (used.requests, used.output, used.estimated) == (1, 50, 1)
    assert used.prompt > 0
    assert await running.metric("plumage_router_latency_seconds_count") == 0
    assert await running.metric("plumage_router_usage_missing_total") == 0


async def test_stream_that_goes_silent_ends_without_blame(start: Any, kit: Any) -> None:
    """vLLM never ends the stream of a cancelled response."""
    running = await running_with(start, kit, engines=1, timeouts={"idle": 0.3, "firstByte": 0.3})
    name, home = await made(running, background=True)
    home.answer.silent = True
    for _ in range(8):
        reader, writer = await running.connect()
        writer.write(kit.request(b"", path=f"/v1/responses/{name}?stream=true", method="GET"))
        async with asyncio.timeout(30):
            assert b"truncated" in await reader.read()
        late = await ask(running, kit, f"/v1/responses/{name}?stream=true&starting_after=2")
        assert (late.status, late.error["code"]) == (504, "timeout")
    assert (await ask(running, kit, f"/v1/responses/{name}")).status == 200


async def test_stream_that_the_engine_can_not_continue_costs_the_replica_nothing(start: Any, kit: Any) -> None:
    """vLLM sends a head and then drops the connection for the stream of a response that was not in the background."""
    running = await running_with(start, kit, engines=1)
    name, home = await made(running)

    async def drop(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.STREAM_HEAD)
        await writer.drain()
        writer.transport.abort()

    store, home.answer = home.answer, drop
    for _ in range(12):
        got = await ask(running, kit, f"/v1/responses/{name}?stream=true")
        assert got.status in (422, 502)
    home.answer = store
    assert (await ask(running, kit, f"/v1/responses/{name}")).status == 200


async def test_response_of_a_replica_that_is_down_or_left(start: Any, kit: Any) -> None:
    running = await running_with(start, kit, engines=2)
    name, home = await made(running)
    await home.stop()
    for _ in range(8):
        got = await ask(running, kit, f"/v1/responses/{name}")
        assert got.status in (502, 503)
    assert (got.status, got.error["param"]) == (503, "response_id")
    running.engines.remove(home)
    running.write_members()
    await kit.until(lambda: len(list(running.router.pool.fleet)) == 1)
    gone = await ask(running, kit, f"/v1/responses/{name}")
    assert (gone.status, gone.json) == (404, not_found(name))


async def test_other_methods_and_paths_are_not_served(start: Any, kit: Any) -> None:
    running = await running_with(start, kit, engines=1)
    name, _ = await made(running)
    for path, method in ((name, "DELETE"), (f"{name}/input_items", "GET"), (f"{name}/cancel", "GET"), (name, "POST")):
        got = await ask(running, kit, f"/v1/responses/{path}", method)
        assert (got.status, got.error["code"]) == (404, "not_served")
        assert "cancel" in got.error["message"]
