"""Where requests go: the endpoint picker protocol of the Gateway API Inference Extension."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

KEY = "x-gateway-destination-endpoint"
ENDPOINT = re.compile(r"(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-fA-F:.]+\]):\d{1,5}")


async def test_destination_is_in_header_and_metadata(picker: Any) -> None:
    """Both, and equal."""
    exchange = picker.open()
    await exchange.request_headers()
    await exchange.request_body(exchange.chat())
    found, answer = await exchange.destination()
    assert found, "the answer to the headers has no destination"
    assert all(ENDPOINT.fullmatch(one.strip()) for one in found.split(",")), found
    assert MessageToDict(answer.dynamic_metadata)["envoy.lb"][KEY] == found


async def test_client_cannot_choose_the_destination(picker: Any) -> None:
    """The header of the picker replaces a client's: 2 is OVERWRITE_IF_EXISTS_OR_ADD, 3 OVERWRITE_IF_EXISTS."""
    exchange = picker.open()
    await exchange.request_headers(headers=[(KEY, "192.0.2.1:1")])
    await exchange.request_body(exchange.chat())
    found, answer = await exchange.destination()
    assert "192.0.2.1" not in found
    mutation = answer.request_headers.response.header_mutation
    (one,) = [one for one in mutation.set_headers if one.header.key.lower() == KEY]
    removed = [name.lower() for name in mutation.remove_headers]
    assert one.append_action in (2, 3) or KEY in removed


async def endpoints(picker: Any) -> list[str]:
    """Those that the picker knows: as the settings say, else those that it chooses."""
    if picker.target.endpoints:
        return list(picker.target.endpoints)
    found = {
        one.strip() for number in range(32) for one in (await picker.open().pick(f"topic {number}")).split(",")
    }  # fmt: skip
    return sorted(found)


async def test_subset_is_kept(picker: Any) -> None:
    """With a subset hint the picker chooses among its endpoints only."""
    for endpoint in await endpoints(picker):
        for number in range(4):
            found = await picker.open().pick(f"question {number}", subset=[endpoint])
            assert found == endpoint


async def test_subset_without_a_ready_endpoint_gets_503(picker: Any) -> None:
    exchange = picker.open()
    await exchange.request_headers(subset=["192.0.2.1:1"])
    await exchange.request_body(exchange.chat())
    answer = await exchange.answer()
    assert answer.WhichOneof("response") == "immediate_response"
    assert answer.immediate_response.status.code == 503


async def test_equal_prompts_keep_their_answers_apart(picker: Any) -> None:
    """A decision does not depend on an earlier call that is still open."""
    first, second = picker.open(), picker.open()
    assert await first.pick("the same words")
    assert await second.pick("the same words")
    await second.respond()
    await first.respond()


@pytest.mark.parametrize("path", ["/v1/models", "/"])
async def test_request_without_a_body_is_answered(picker: Any, path: str) -> None:
    """Nothing follows its headers, so the picker must not wait: a destination or an answer of its own."""
    exchange = picker.open()
    await exchange.request_headers(method="GET", path=path, end=True)
    refusal = await exchange.refusal_or_destination()
    assert refusal is None or 400 <= refusal.status.code < 600
