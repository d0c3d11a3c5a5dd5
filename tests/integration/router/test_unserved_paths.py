"""APIs that are not served name an alternative; unknown paths are counted by class."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest


@pytest.mark.parametrize(("method", "path"), [
    ("DELETE", "/v1/responses/resp_1"), ("GET", "/v1/responses/resp_1/input_items"),
])  # fmt: skip
async def test_unserved_api_names_alternative(start: Any, kit: Any, path: str, method: str) -> None:
    running = await start(engines=1)
    answer = await running.send(kit.request({}, path=path, method=method))
    assert (answer.status, answer.error["code"], answer.error["type"]) == (404, "not_served", "not_found_error")
    assert "GET /v1/responses/ID" in answer.error["message"]


async def test_unserved_api_error_reaches_openai_client(start: Any) -> None:
    running = await start(engines=1)
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="GET /v1/responses/ID") as refused:
            await client.responses.delete("resp_1")
        assert refused.value.code == "not_served"


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/messages/batches/b/results"])
async def test_anthropic_api_error_has_anthropic_format(start: Any, kit: Any, path: str) -> None:
    running = await start(engines=1)
    answer = await running.post({"requests": []}, path=path)
    assert answer.status == 404
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "not_found_error"
    assert "/v1/messages instead" in answer.json["error"]["message"]


async def test_unknown_paths_are_counted_by_class(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    for path, times in (("/v1/responses/y/z", 3), ("/v1/responses/x/z", 2), ("/v1/messages/batches", 1),
                        ("/v1/files/a", 2), ("/v1/secret-name", 4), ("/wp-login.php", 5), ("/", 1)):  # fmt: skip
        for _ in range(times):
            answer = await running.send(kit.request({}, path=path, method="GET"))
            assert answer.status == 404
            assert answer.json["error"]["message"]
    await running.send(kit.request({}, path="/v1/models/nobody", method="GET"))
    page = (await running.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    counted = dict(re.findall(r'^plumage_router_not_found_total\{path="(.*)"\} (\d+)$', page, re.M))
    assert counted == {"/v1/responses": "5", "/v1/messages": "1", "/v1/files": "2", "/v1": "4", "other": "6"}


async def test_unknown_model_has_one_code(start: Any, kit: Any) -> None:
    running = await start(engines=1)
    chat = await running.post({**kit.chat(), "model": "nobody"})
    one = await running.send(kit.request({}, path="/v1/models/nobody", method="GET"))
    assert chat.status == one.status == 404
    assert chat.error == one.error
    assert one.error["code"] == "model_not_found"
