"""What the agent's HTTP surface answers to paths that it has not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from plumage.errors import RefusedError
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


class _Callers:
    """Lets one token in, as a pod's callers do after they asked the API server."""

    async def check(self, authorization: str) -> str:
        if authorization != "Bearer of the operator":
            raise RefusedError(403, "system:serviceaccount:a:b may not call here")
        return "system:serviceaccount:plumage-system:plumage-operator"


async def test_the_pods_own_token_and_the_callers_open_the_same_routes() -> None:
    agent: Any = _Agent()
    agent.callers, agent.drain = _Callers(), None  # a body that is too large ends it before
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(agent)), base_url="http://agent") as client:
        for token, status in (("t", 413), ("of the operator", 413), ("x", 403)):
            headers = {"authorization": f"Bearer {token}"}
            answer = await client.post("/v1/plumage/drain", headers=headers, content=b"x" * 5000)
            assert answer.status_code == status, token
        assert answer.json()["error"] == {
            "message": "system:serviceaccount:a:b may not call here", "type": "permission_error",
        }  # fmt: skip
        agent.callers = None
        assert (await client.post("/v1/plumage/drain", headers=headers)).status_code == 401
