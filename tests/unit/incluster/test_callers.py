"""Who is allowed in while the API server answers, is away, or changes its keys."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from plumage.api_server import ApiServerError
from plumage.errors import CallerRefusedError
from plumage.incluster import callers as module
from plumage.incluster.callers import Callers

NOW = 1_800_000_000.0
NAME = "system:serviceaccount:shop:chat-router"


class Api:
    """An API server's keys, read by the single call that `Callers` makes."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.away = False
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.waited = asyncio.Event()

    def add(self, kid: str) -> str:
        """Adds a key. Returns a bearer header that it signed."""
        key = ec.generate_private_key(ec.SECP256R1())
        self.keys[kid] = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": kid}
        claims = {"sub": NAME, "aud": ["plumage"], "exp": NOW + 600, "nbf": NOW}
        return "Bearer " + jwt.encode(claims, key, "ES256", headers={"kid": kid})

    async def get(self, path: str, params: Any = None) -> Any:
        assert path == "/openid/v1/jwks"
        self.asked += 1
        if not self.answers.is_set():
            self.waited.set()
            await self.answers.wait()
        if self.away:
            raise ApiServerError("the API server can't be reached: no answer in time")
        return {"keys": list(self.keys.values())}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Seconds by which the keys age."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    return Clock


async def refused(callers: Callers, header: str) -> CallerRefusedError:
    with pytest.raises(CallerRefusedError) as caught:
        await callers.check(header)
    return caught.value


async def test_keys_are_requested_once_and_again_every_hour(clock: Any) -> None:
    api: Any = Api()
    header = api.add("one")
    callers = Callers(api, [NAME], lambda: NOW)
    for _ in range(5):
        assert await callers.check(header) == NAME
    assert api.asked == 1
    clock.now += 3600
    assert await callers.check(header) == NAME
    assert api.asked == 2


async def test_new_key_is_found_and_nonsense_causes_few_requests(clock: Any) -> None:
    api: Any = Api()
    first = api.add("one")
    callers = Callers(api, [NAME], lambda: NOW)
    await callers.check(first)
    second = api.add("two")
    for _ in range(50):
        assert (await refused(callers, second)).status == 401
    assert api.asked == 1
    clock.now += module.SELDOM
    assert await callers.check(second) == NAME
    assert api.asked == 2


async def test_known_keys_stay_valid_while_the_api_server_is_away(clock: Any) -> None:
    api: Any = Api()
    header = api.add("one")
    api.away = True
    callers = Callers(api, [NAME], lambda: NOW)
    refusal = await refused(callers, header)
    assert refusal.status == 503
    assert "can't be reached" in str(refusal)
    api.away = False
    clock.now += module.SELDOM
    await callers.check(header)
    api.away = True
    clock.now += 7200
    assert await callers.check(header) == NAME


async def test_known_key_does_not_wait_for_a_stranger(clock: Any) -> None:
    """The API server hangs while a client sends a token with an unknown key."""
    api: Any = Api()
    known, stranger = api.add("one"), api.add("two")
    del api.keys["two"]
    callers = Callers(api, [NAME], lambda: NOW)
    await callers.check(known)
    clock.now += module.SELDOM
    api.answers.clear()
    strangers = [asyncio.create_task(callers.check(stranger)) for _ in range(3)]
    async with asyncio.timeout(60):
        await api.waited.wait()
        assert await callers.check(known) == NAME
    clock.now += 30  # the API server's timeout has passed
    api.answers.set()
    for result in await asyncio.gather(*strangers, return_exceptions=True):
        assert isinstance(result, CallerRefusedError)
        assert result.status == 401
    assert api.asked == 2  # the others waited for the same answer


async def test_only_listed_callers_with_bearer_tokens_are_allowed(clock: Any) -> None:
    api: Any = Api()
    header = api.add("one")
    stranger = await refused(Callers(api, ["system:serviceaccount:shop:other"], lambda: NOW), header)
    assert stranger.status == 403
    assert NAME in str(stranger)
    callers = Callers(api, [NAME], lambda: NOW)
    for given in ("", "Basic eDp5", header.removeprefix("Bearer "), "Bearer ", "Bearer x"):
        assert (await refused(callers, given)).status == 401
    assert await callers.check(header.replace("Bearer", "bearer")) == NAME
