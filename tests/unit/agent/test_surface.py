"""What the agent's HTTP server answers to unknown paths and to callers without rights."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette

from plumage.errors import CallerRefusedError
from plumage_engine.agent.http.access import Access
from plumage_engine.agent.http.routes import make_app
from plumage_engine.agent.lifecycle.warmup import Hottest

TOKEN = SecretStr("t")


class _Watch:
    async def drain(self, seconds: float) -> dict[str, Any]:
        return {"drained": True}


class _Agent:
    """Answers what the routes need, as far as the requests here get."""

    watch = _Watch()

    def hottest(self, tokens: int) -> Hottest:
        return Hottest([])


def app(access: Access) -> Starlette:
    agent: Any = _Agent()
    return make_app(agent, access)


@pytest.mark.parametrize("path", ["/healthz/", "/v1/plumage/drain/", "/v1/plumage/stats/", "/nothing"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_double_slash_redirects_to_no_other_host(path: str, method: str) -> None:
    """A redirect would contain the host that the client wrote, and send the token there."""
    transport = httpx.ASGITransport(app(Access(TOKEN)))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        answer = await client.request(method, path, headers={"host": "evil.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
    assert answer.json() == {"error": {"message": "Not Found", "type": "invalid_request_error"}}


PEER, OPERATOR = "system:serviceaccount:a:chat-engine", "system:serviceaccount:plumage-system:plumage-operator"


class _Callers:
    """Accepts two tokens, as a pod's callers do after they asked the API server."""

    async def check(self, authorization: str) -> str:
        known = {"Bearer of a peer": PEER, "Bearer of the operator": OPERATOR}
        if authorization not in known:
            raise CallerRefusedError(403, "system:serviceaccount:a:b may not call here")
        return known[authorization]


ACCESS = Access(TOKEN, _Callers(), frozenset({OPERATOR}))


async def asked(access: Access, method: str, name: str, token: str) -> httpx.Response:
    transport = httpx.ASGITransport(app(access))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        headers = {"authorization": f"Bearer {token}"}
        return await client.request(method, f"/v1/plumage/{name}", headers=headers)


@pytest.mark.parametrize(
    ("token", "hottest", "drain"),
    [("t", 200, 200), ("of a peer", 200, 401), ("of the operator", 403, 401), ("x", 403, 401)],
)
async def test_prompts_are_for_peers_and_drain_is_for_the_own_pod(token: str, hottest: int, drain: int) -> None:
    """The operator shows one token to all pools: a pool that saw it must not read prompts with it."""
    assert (await asked(ACCESS, "GET", "hottest", token)).status_code == hottest
    assert (await asked(ACCESS, "POST", "drain", token)).status_code == drain


async def test_refusal_names_caller_and_route() -> None:
    error = (await asked(ACCESS, "GET", "hottest", "of the operator")).json()["error"]
    assert error == {"message": f"{OPERATOR} may read figures here, and no prompts", "type": "permission_error"}
    error = (await asked(ACCESS, "GET", "stats", "x")).json()["error"]
    assert error["message"] == "system:serviceaccount:a:b may not call here"
    assert (await asked(Access(TOKEN), "GET", "stats", "x")).status_code == 401


async def test_settings_of_an_older_operator_have_callers_only() -> None:
    """These callers have the rights that they had before."""
    older = Access(TOKEN, _Callers())
    assert (await asked(older, "GET", "hottest", "of the operator")).status_code == 200
