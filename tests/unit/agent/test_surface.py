"""What the agent's HTTP surface answers to paths that it has not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from plumage_engine.agent.app import make_app


class _Agent:
    """No route is reached here, so it needs nothing but the token."""

    token = SecretStr("t")


@pytest.mark.parametrize("path", ["/healthz/", "/v1/plumage/drain/", "/v1/plumage/stats/", "/nothing"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_slash_too_many_is_no_way_to_another_host(path: str, method: str) -> None:
    """A redirect would carry the host that the client wrote, and send the token there."""
    agent: Any = _Agent()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(agent)), base_url="http://agent") as client:
        answer = await client.request(method, path, headers={"host": "evil.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
    assert answer.json() == {"error": {"message": "Not Found", "type": "invalid_request_error"}}
