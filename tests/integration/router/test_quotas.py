"""What tenants may use: limits over several routers with a real directory, and without it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from plumage.directory.server.local_server import LocalServer
from plumage.quotas import FRESH, RECHECK
from plumage.settings.router_config import QuotaConfig
from plumage_router.proxy.proxied_request import ProxiedRequest

NOON = 1_700_000_040.0  # the beginning of a minute


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "keys").write_text("alice key-a\nbob key-b\ncarol key-c\n")
    return {"apiKeysFile": str(tmp_path / "keys")}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The wall clock of the quotas, which a test moves: minutes do not end by themselves."""
    now = [NOON]
    for module in ("quotas", "quota_exchange"):
        monkeypatch.setattr(f"plumage_router.proxy.{module}.wall", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def _often_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage_router.proxy.quota_exchange.PRESENCE", 0.2)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


def of(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@contextmanager
def frozen(server: LocalServer) -> Iterator[None]:
    """The server does not answer, and its connections stay open."""
    with redis.Redis.from_url(server.url) as client:
        pid = int(client.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def is_published(quotas: Any) -> bool:
    """Whether the other routers know all its numbers."""
    return all(meter.mine == meter.published for use in quotas.uses.values() for meter in use.due(quotas.sharing()))


async def ask(running: Any, kit: Any, key: str = "key-a", **body: Any) -> Any:
    return await running.post(kit.chat(**body), **of(key))


async def with_old_numbers(start: Any, kit: Any, keys: Any, server: LocalServer) -> Any:
    """A router that answered one request of alice, of her 100 a minute, and then heard nothing of the others."""
    quotas = [{"tenant": "alice", "requestsPerMinute": 100}]
    running = await start(engines=1, auth=keys, quotas=quotas, directoryUrl=server.url)
    assert (await ask(running, kit)).status == 200
    await kit.until(lambda: is_published(running.router.pool.quotas))
    await asyncio.sleep(2 * FRESH)
    return running


async def test_request_over_the_quota_gets_429(start: Any, kit: Any, keys: Any, clock: list[float]) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "requestsPerMinute": 2}])
    clock[0] = NOON + 20.0
    assert [(await ask(running, kit)).status for _ in range(2)] == [200, 200]
    refused = await ask(running, kit)
    assert (refused.status, refused.headers["retry-after"]) == (429, "40")
    assert refused.error == {
        "message": "The quota of this key is used up: requestsPerMinute is 2. Send it again in 40 s.",
        "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded",
    }  # fmt: skip
    assert len(running.engines[0].seen) == 2
    assert (await ask(running, kit, "key-b")).status == 200, "another tenant"
    clock[0] = NOON + 60.0
    assert (await ask(running, kit)).status == 200


async def test_quota_of_all_others_counts_each_by_itself(start: Any, kit: Any, keys: Any) -> None:
    quotas = [{"tenant": "*", "requestsPerMinute": 1}, {"tenant": "alice", "requestsPerMinute": 3}]
    running = await start(engines=1, auth=keys, quotas=quotas)
    for key, most in (("key-a", 3), ("key-b", 1), ("key-c", 1)):
        statuses = [(await ask(running, kit, key)).status for _ in range(4)]
        assert statuses == [200] * most + [429] * (4 - most), key


async def test_tenant_gets_its_models_only(start: Any, kit: Any, keys: Any) -> None:
    quotas = [{"tenant": "alice", "models": ["fast", "sql"]}, {"tenant": "bob", "requestsPerMinute": 9}]
    model = {"name": "tiny", "modelFolder": "builtin://tiny-chat", "aliases": ["fast"], "adapters": ["sql"]}
    running = await start(engines=1, auth=keys, quotas=quotas, model=model)
    for key, allowed in (("key-a", ["fast", "sql"]), ("key-b", ["tiny", "fast", "sql"])):
        listed = (await running.send(kit.request({}, path="/v1/models", method="GET", **of(key)))).json
        assert [entry["id"] for entry in listed["data"]] == allowed
        for name in ("tiny", "fast", "sql"):
            status = 200 if name in allowed else 403
            assert (await ask(running, kit, key, model=name)).status == status, (key, name)
            one = await running.send(kit.request({}, path=f"/v1/models/{name}", method="GET", **of(key)))
            assert one.status == (200 if name in allowed else 404)
    refused = await ask(running, kit, model="tiny")
    assert refused.error == {
        "message": "This key may not use the model 'tiny'. It may use fast, sql.",
        "type": "permission_error", "param": "model", "code": "model_refused",
    }  # fmt: skip
    assert (await ask(running, kit, model="other")).status == 404
    assert len(running.engines[0].seen) == 5
    [entry] = running.router.pool.quotas.document()
    assert (entry["tenant"], entry["used"]) == ("bob", 3), "a refused request takes nothing, and models are no number"


async def test_models_of_all_others_are_those_of_the_star(start: Any, kit: Any, keys: Any) -> None:
    quotas = [{"tenant": "*", "models": ["fast"]}, {"tenant": "alice", "requestsPerMinute": 9}]
    model = {"name": "tiny", "modelFolder": "builtin://tiny-chat", "aliases": ["fast"]}
    running = await start(engines=1, auth=keys, quotas=quotas, model=model)
    assert (await ask(running, kit, "key-a", model="tiny")).status == 200, "she has an entry of her own"
    assert (await ask(running, kit, "key-b", model="tiny")).status == 403
    assert (await ask(running, kit, "key-b", model="fast")).status == 200


async def test_tokens_count_as_the_engine_counted_them(start: Any, kit: Any, keys: Any) -> None:
    """Each answer reports 103 tokens, whatever the router expected."""
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "tokensPerMinute": 300}])
    for stream in (False, True, False):
        assert (await ask(running, kit, stream=stream, max_tokens=60)).status == 200
    refused = await ask(running, kit, max_tokens=60)
    assert (refused.status, refused.error["message"].partition(":")[0]) == (429, "The quota of this key is used up")
    [entry] = running.router.pool.quotas.document()
    assert entry == {"tenant": "alice", "limit": "tokensPerMinute", "used": 309, "most": 300}


async def test_request_that_can_never_fit_says_so(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "tokensPerDay": 500}])
    refused = await ask(running, kit, max_tokens=1000)
    assert refused.status == 429
    assert "retry-after" not in refused.headers
    assert refused.error["message"].startswith("The request needs up to 10")
    assert refused.error["message"].endswith("tokens: tokensPerDay is 500.")
    assert (await ask(running, kit, max_tokens=100)).status == 200


async def test_failed_request_takes_no_tokens(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "tokensPerDay": 5000}])

    async def fails(seen: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n")

    running.engines[0].answer = fails
    assert (await ask(running, kit, max_tokens=4000)).status == 502
    assert [entry["used"] for entry in running.router.pool.quotas.document()] == [0]


async def test_requests_at_one_time_are_limited(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "concurrentRequests": 2}])
    go_on, normally = asyncio.Event(), running.engines[0].normally

    async def waits(seen: Any, writer: Any) -> None:
        await go_on.wait()
        await normally(seen, writer)

    running.engines[0].answer = waits
    first = [asyncio.ensure_future(ask(running, kit)) for _ in range(2)]
    await kit.until(lambda: len(running.engines[0].seen) == 2)
    assert (await ask(running, kit)).status == 429
    go_on.set()
    assert [(await one).status for one in first] == [200, 200]
    await kit.until(lambda: not running.router.pool.in_flight)
    assert (await ask(running, kit)).status == 200
    _, writer = await running.connect()  # a client that leaves gives its place back
    go_on.clear()
    writer.write(kit.request(kit.chat(), **of("key-a")))
    await kit.until(lambda: len(running.engines[0].seen) == 4)
    writer.transport.abort()
    await kit.until(lambda: running.router.pool.quotas.document()[0]["used"] == 0)


async def test_limits_change_while_the_router_runs(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "requestsPerMinute": 1}])
    pool = running.router.pool
    assert [(await ask(running, kit)).status for _ in range(2)] == [200, 429]
    changed = pool.config.model_copy(update={"quotas": (QuotaConfig(tenant="alice", requests_per_minute=2),)})
    pool.reconfigure(changed)
    assert [(await ask(running, kit)).status for _ in range(2)] == [200, 429]
    pool.reconfigure(pool.config.model_copy(update={"quotas": ()}))
    assert (await ask(running, kit)).status == 200


@pytest.mark.redis
async def test_routers_share_a_quota(start: Any, kit: Any, keys: Any, server: LocalServer) -> None:
    """Three routers get twice the limit together, one of them most; the limit is admitted, and no more."""
    quotas = [{"tenant": "alice", "requestsPerMinute": 60}]
    routers = [await start(engines=1, auth=keys, quotas=quotas, directoryUrl=server.url) for _ in range(3)]
    statuses: Counter[int] = Counter()
    await kit.until(lambda: all(running.router.pool.quotas.routers == 3 for running in routers))
    for number in range(120):
        running = routers[number % 6 if number % 6 < 3 else 0]
        statuses[(await ask(running, kit)).status] += 1
    assert 60 <= statuses[200] <= 66, "a router may admit a request or two before it has heard of the others"
    assert statuses[429] == 120 - statuses[200]


@pytest.mark.redis
async def test_burst_waits_for_the_numbers_of_the_others(start: Any, kit: Any, keys: Any, server: LocalServer) -> None:
    quotas = [{"tenant": "alice", "requestsPerMinute": 40}]
    routers = [await start(engines=1, auth=keys, quotas=quotas, directoryUrl=server.url) for _ in range(2)]
    await kit.until(lambda: all(running.router.pool.quotas.routers == 2 for running in routers))
    answers = await asyncio.gather(*(ask(routers[number % 2], kit) for number in range(100)))
    admitted = sum(answer.status == 200 for answer in answers)
    assert admitted <= 41
    await asyncio.sleep(1.1 * RECHECK)
    while (await ask(routers[0], kit)).status == 200:  # what two routers refused each other is still there
        admitted += 1
    assert 40 <= admitted <= 42
    assert routers[0].router.pool.quotas.asked > 0


@pytest.mark.redis
async def test_frozen_directory_delays_no_request_for_long(
    start: Any, kit: Any, keys: Any, server: LocalServer
) -> None:
    running = await with_old_numbers(start, kit, keys, server)
    quota = running.router.pool.quotas
    with frozen(server):
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(ask(running, kit) for _ in range(20)))
    assert {answer.status for answer in answers} == {200}, "all fit, and this router counts alone"
    assert quota.failures >= 1

    async with asyncio.timeout(30):
        while not quota.answers:
            await ask(running, kit)
    assert quota.document()[0]["used"] >= 21


@pytest.mark.redis
async def test_client_that_leaves_while_it_waits_takes_nothing(
    start: Any, kit: Any, keys: Any, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumage_router.proxy.quota_exchange.ANSWER", 60.0)
    running = await with_old_numbers(start, kit, keys, server)
    quota = running.router.pool.quotas
    with frozen(server):
        waiting = [await running.connect() for _ in range(3)]
        for _, writer in waiting:
            writer.write(kit.request(kit.chat(), **of("key-a")))
        await kit.until(lambda: quota.document()[0]["used"] == 4)
        assert quota.asked == 2, "the first one is within the share"
        for _, writer in waiting[1:]:
            writer.transport.abort()
        await kit.until(lambda: quota.document()[0]["used"] == 2)
    await kit.until(lambda: len(running.router.pool.in_flight) == 0)
    assert len(running.engines[0].seen) == 2


@pytest.mark.redis
async def test_directory_names_no_tenant(start: Any, kit: Any, keys: Any, server: LocalServer) -> None:
    running = await start(
        engines=1, auth=keys, quotas=[{"tenant": "*", "requestsPerMinute": 9}], directoryUrl=server.url
    )
    assert (await ask(running, kit)).status == 200
    with redis.Redis.from_url(server.url) as client:
        await kit.until(lambda: client.keys("*quota*"))
        found = client.keys("*quota*")
        assert not [key for key in found if b"alice" in key]
        assert all(0 < client.ttl(key) <= 120 for key in found)


@pytest.mark.parametrize(
    ("path", "body", "taken"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 900}, 900),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 900}, 900),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}, 256),
        ("/v1/completions", {"prompt": ["hello " * 400] * 3, "max_tokens": 100, "n": 2}, 600 + 1200),
        ("/tokenize", {"prompt": "hello " * 400}, 0),
    ],
)
async def test_request_first_takes_what_it_may_use(
    start: Any, kit: Any, keys: Any, path: str, body: dict[str, Any], taken: int
) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "tokensPerDay": 100_000}])
    go_on = asyncio.Event()

    async def waits(seen: Any, writer: Any) -> None:
        await go_on.wait()
        writer.write(running.engines[0].whole())

    running.engines[0].answer = waits
    asked = asyncio.ensure_future(running.post({"model": "tiny", **body}, path=path, **of("key-a")))
    await kit.until(lambda: running.engines[0].seen)
    [entry] = running.router.pool.quotas.document()
    assert taken <= entry["used"] <= 1.6 * taken + 60
    go_on.set()
    await asked


async def test_stream_that_its_client_leaves_counts_what_it_got(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "tokensPerDay": 100_000}])

    running.engines[0].answer = kit.endless
    reader, writer = await running.connect()
    writer.write(kit.request(kit.chat(stream=True), **of("key-a")))
    got = b""
    while b"word 499" not in got:
        got += await reader.read(1 << 16)
    writer.transport.abort()
    await kit.until(lambda: not running.router.pool.in_flight)
    [entry] = running.router.pool.quotas.document()
    assert 500 <= entry["used"] <= 700


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "tiny", "input": "some text " * 400}),
        ("/v1/completions", {"model": "tiny", "prompt": ["some text " * 20] * 20, "max_tokens": 1}),
    ],
)
async def test_cut_request_counts_its_whole_prompt(
    start: Any, kit: Any, keys: Any, path: str, body: dict[str, Any]
) -> None:
    """4,000 bytes, of which the router renders none, or the first of twenty."""
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "tokensPerDay": 100_000}])

    async def waits(seen: Any, writer: Any) -> None:
        await asyncio.sleep(3600)

    running.engines[0].answer = waits
    _, writer = await running.connect()
    writer.write(kit.request(body, path=path, **of("key-a")))
    await kit.until(lambda: running.engines[0].seen)
    writer.transport.abort()
    await kit.until(lambda: not running.router.pool.in_flight)
    assert running.router.pool.quotas.document()[0]["used"] >= 800


async def test_refused_answer_of_an_engine_takes_no_tokens(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "tokensPerDay": 5000}])

    async def refuses(seen: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 400 x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    running.engines[0].answer = refuses
    assert (await ask(running, kit, max_tokens=4000)).status == 400
    await kit.until(lambda: not running.router.pool.in_flight)
    assert running.router.pool.quotas.document()[0]["used"] == 0


async def test_exhausted_tenant_is_refused_before_its_body_is_read(start: Any, kit: Any, keys: Any) -> None:
    running = await start(engines=1, auth=keys, quotas=[{"tenant": "alice", "requestsPerMinute": 1}])
    assert (await ask(running, kit)).status == 200
    assert (await running.post(b"no JSON at all", **of("key-a"))).status == 429
    assert (await running.post(b"no JSON at all", **of("key-b"))).status == 400


@pytest.mark.redis
async def test_waiting_requests_end_when_their_quota_is_removed(
    start: Any, kit: Any, keys: Any, server: LocalServer
) -> None:
    running = await with_old_numbers(start, kit, keys, server)
    pool = running.router.pool
    with frozen(server):
        waiting = [asyncio.ensure_future(ask(running, kit)) for _ in range(5)]
        await kit.until(lambda: pool.quotas.asked)
        pool.reconfigure(pool.config.model_copy(update={"quotas": ()}))
        async with asyncio.timeout(10):
            assert {(await one).status for one in waiting} == {200}


@pytest.mark.redis
@pytest.mark.interpreted
async def test_failure_of_one_request_loses_no_other(
    start: Any, kit: Any, keys: Any, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await with_old_numbers(start, kit, keys, server)
    quota = running.router.pool.quotas
    failed = []
    own = ProxiedRequest._quota_decided

    def fails_once(request: Any, error: Any) -> None:
        if not failed:
            failed.append(request)
            raise RuntimeError("a bug")
        own(request, error)

    monkeypatch.setattr(ProxiedRequest, "_quota_decided", fails_once)
    with frozen(server):
        waiting = [asyncio.ensure_future(ask(running, kit)) for _ in range(4)]
        await kit.until(lambda: quota.asked == 3)
        async with asyncio.timeout(10):
            done, left = await asyncio.wait(waiting, timeout=3.0)
    assert len(done) == 3
    assert len(failed) == len(left) == 1
    failed[0].abort()
    for one in left:
        one.cancel()


@pytest.mark.redis
async def test_day_outlives_a_server_that_starts_empty(start: Any, kit: Any, keys: Any, server: LocalServer) -> None:
    quotas = [{"tenant": "alice", "tokensPerDay": 250}]
    routers = [await start(engines=1, auth=keys, quotas=quotas, directoryUrl=server.url) for _ in range(2)]
    for running in reversed(routers):  # so that the first hears of the second's when it publishes its own
        assert (await ask(running, kit, max_tokens=5)).status == 200  # 103 tokens
        await kit.until(lambda: is_published(running.router.pool.quotas))  # noqa: B023
    await asyncio.sleep(1.1 * RECHECK)
    assert (await ask(routers[0], kit, max_tokens=100)).status == 429
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    await asyncio.sleep(1.1 * RECHECK)
    assert (await ask(routers[0], kit, max_tokens=100)).status == 429
