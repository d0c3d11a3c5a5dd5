"""`plumage up` from start to end: scaling, drains, and nothing left behind however it ends. The tests share one pool,
until Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from support.pool import Pool, gone, leftovers, load, lost, prompts, ready_pool, whole

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def pool(runtime: Path) -> Iterator[Pool]:
    with ready_pool(runtime, 2) as pool:
        yield pool


async def test_engines_answer_their_own_router_only(pool: Pool) -> None:
    """Probes and scrapes stay open; the key is in no settings file and no list of processes."""
    view = pool.view()
    key = (pool.folder / "engine-key").read_text().strip()
    body = {"model": "tiny-chat", "prompt": "Hello", "max_tokens": 2}
    async with httpx.AsyncClient(timeout=30.0) as client:
        for replica in view["replicas"]:
            for headers in ({}, {"Authorization": "Bearer any"}):
                reply = await client.post(f"{replica['url']}/v1/completions", json=body, headers=headers)
                assert reply.status_code == 401
            reply = await client.post(
                f"{replica['url']}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}
            )
            assert reply.status_code == 200
            for path in ("/health", "/metrics"):
                assert (await client.get(f"{replica['url']}{path}")).status_code == 200
        assert (await client.post(f"{pool.url}/v1/completions", json=body)).status_code == 200
    visible = "".join(path.read_text() for path in pool.folder.glob("*.json"))
    visible += "".join(" ".join(psutil.Process(pid).cmdline()) for pid in pool.pids().values())
    assert key not in visible
    assert {path.stat().st_mode & 0o777 for path in pool.folder.glob("*-key")} == {0o600}


async def test_status_explain_and_doctor_find_the_pool(pool: Pool) -> None:
    async with httpx.AsyncClient() as client:
        reply = await client.post(
            f"{pool.url}/v1/chat/completions",
            json={"model": "tiny-chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
            headers={"X-Request-Id": "my-request"},
            timeout=30.0,
        )
    assert reply.status_code == 200
    assert reply.headers["x-request-id"] == "my-request"
    status, explained, doctor, other = await asyncio.gather(
        *(
            asyncio.to_thread(pool.run, *words)
            for words in (("status",), ("explain", "my-request"), ("doctor",), ("explain", "nobody"))
        )
    )
    assert "chat-0" in status.stdout
    assert "chat-1" in status.stdout
    assert explained.stdout.startswith("request my-request for tiny-chat → chat-")
    assert "why: " in explained.stdout
    assert "pool chat is running" in doctor.stdout
    assert other.returncode == 1
    assert "does not know request nobody" in other.stderr
    second = await asyncio.to_thread(pool.run, "up", "examples/minimal.yaml", f"--port={pool.port + 1}")
    assert second.returncode == 1
    assert "pool chat is already running" in second.stderr


async def test_failed_scale_up_leaves_the_pool_unchanged(pool: Pool) -> None:
    (blocked := pool.folder / "engine-chat-2.json").mkdir()
    done = await asyncio.to_thread(pool.run, "scale", "3")
    assert done.returncode == 1
    assert "engine-chat-2.json: Is a directory; another file or folder is there: move it elsewhere" in done.stderr
    blocked.rmdir()
    await pool.until(whole(2))
    assert lost(await load(pool, prompts(4, seed=9))) == []


async def test_scaling_under_load_loses_no_request(pool: Pool) -> None:
    async def scale() -> list[str]:
        said = []
        for replicas in (4, 1):
            done = await asyncio.to_thread(pool.run, "scale", str(replicas))
            assert done.returncode == 0, done.stderr
            said.append(done.stdout)
        return said

    sessions = [session for wave in range(12) for session in prompts(4, seed=wave, at=0.5 * wave)]
    outcomes, said = await asyncio.gather(load(pool, sessions), scale())
    assert lost(outcomes) == []
    assert sum(outcome.cut for outcome in outcomes) == 0, "a drained replica ends what it began"
    assert said[0].startswith("pool chat has 4 replicas")
    assert said[1].startswith("pool chat has 1 replica")
    await pool.until(whole(1))
    assert len(json.loads((pool.folder / "membership.json").read_text())["replicas"]) == 1


async def test_ctrl_c_ends_requests_in_flight_and_leaves_nothing(pool: Pool) -> None:
    pids = pool.pids()
    async with openai.AsyncOpenAI(base_url=f"{pool.url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny-chat",
            messages=[{"role": "user", "content": "Give me something long."}],
            stream=True,
            max_tokens=60,
        )
        finished = None
        async for chunk in stream:
            if finished is None:
                pool.process.send_signal(signal.SIGINT)
            finished = chunk.choices[0].finish_reason if chunk.choices else finished
            finished = finished or "begun"
    assert finished in ("stop", "length")
    assert await asyncio.to_thread(pool.stop, signal.SIGCONT) == 0
    assert gone(pids) == {}
    assert not pool.folder.exists()
    assert leftovers(pool.runtime) == []


async def test_kill_9_of_the_parent_leaves_nothing(runtime: Path) -> None:
    with ready_pool(runtime, 2) as pool:
        pids = pool.pids()
        assert len(pids) == 7
        pool.process.kill()
        pool.process.wait()
    assert gone(pids) == {}
    assert leftovers(pool.runtime, seconds=30.0) == []  # each child notices by itself
    async with asyncio.timeout(30.0):  # its cleanup process deletes keys and logs
        while pool.folder.exists():  # noqa: ASYNC110 - a folder has no event to wait for
            await asyncio.sleep(0.05)
    again = Pool(pool.runtime, "minimal.yaml")
    try:
        await again.until(whole(1))
        assert sorted(path.name for path in again.folder.glob("engine-*.json")) == ["engine-chat-0.json"]
    finally:
        assert await asyncio.to_thread(again.stop) == 0
        again.process.kill()
        again.finish()
    assert not again.folder.exists()


def test_used_port_is_reported_and_leaves_nothing(runtime: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        pool = Pool.__new__(Pool)
        pool.runtime, pool.name, pool.environment = runtime, "chat", {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
        port = taken.getsockname()[1]
        done = pool.run("up", "examples/minimal.yaml", f"--port={port}")
    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr
    assert "choose another one with --port" in done.stderr
    assert "Traceback" not in done.stderr
    assert leftovers(runtime) == []
    assert not pool.folder.exists()
