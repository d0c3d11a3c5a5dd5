"""The router asks engines for the usage of streams, and clients get what they asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])


def _body(path: str, **more: Any) -> dict[str, Any]:
    asked = {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    return {"model": "tiny", **asked, **more}


@PATHS
@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (None, {"include_usage": True}),
        ({}, {"include_usage": True}),
        ({"include_usage": False, "continuous_usage_stats": True}, {"include_usage": True}),
        ({"include_obfuscation": False}, {"include_obfuscation": False, "include_usage": True}),
        ({"include_usage": True}, {"include_usage": True}),
        ({"include_usage": True, "continuous_usage_stats": True},) * 2,
    ],
)
async def test_router_asks_for_stream_usage(
    start: Any, path: str, options: dict[str, bool] | None, sent: dict[str, bool]
) -> None:
    running = await start(engines=1)
    body = _body(path, stream=True, temperature=0.5, stream_options=options)
    if options is None:
        del body["stream_options"]
    assert (await running.post(body, path=path)).status == 200
    (seen,) = running.engines[0].seen
    assert seen.json == {**body, "stream_options": sent}
    assert seen.body.count(b'"stream_options"') == 1


@PATHS
@pytest.mark.parametrize("stream", [False, None])
async def test_request_without_stream_is_unchanged(start: Any, path: str, stream: bool | None) -> None:
    running = await start(engines=1)
    body = _body(path, stream=stream)
    assert (await running.post(body, path=path)).status == 200
    assert running.engines[0].seen[0].json == body


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("continuous", [False, True])
async def test_forced_usage_is_filtered(start: Any, kit: Any, include: bool, continuous: bool) -> None:
    running = await start(engines=1)

    async def forced(seen: Any, writer: asyncio.StreamWriter) -> None:
        words = [kit.token(word, usage={"prompt_tokens": 100, "completion_tokens": 1}) for word in ("a", "b")]
        writer.write(
            kit.STREAM_HEAD + kit.chunked(b"".join((*words, kit.usage_event(), kit.event("[DONE]")))) + b"0\r\n\r\n"
        )

    running.engines[0].answer = forced
    options = {"include_usage": include, "continuous_usage_stats": continuous}
    answer = await running.post(kit.chat(stream=True, stream_options=options))
    assert answer.body.count(b'"usage"') == (3 if include and continuous else include)
    assert answer.body.count(b'"content"') == 2
    assert running.router.pool.metrics.actual_hit_tokens == 64
