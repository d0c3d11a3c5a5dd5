"""What a live pool survives: removed files and sockets, a killed router, a killed cleanup process. The tests share one
pool; the last one ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from support.pool import Pool, gone, leftovers, load, lost, prompts, ready_pool, whole

pytestmark = [pytest.mark.redis, pytest.mark.timeout(240)]

BODY = {"model": "tiny-chat", "prompt": "Hello", "max_tokens": 2}


@pytest.fixture(scope="module")
def pool(runtime: Path) -> Iterator[Pool]:
    with ready_pool(runtime, 2) as pool:
        yield pool


def sockets_of(pool: Pool) -> list[Path]:
    return [path for path in sorted(pool.folder.rglob("*")) if path.is_socket() and ".sockets" not in path.parts]


def cleanup_processes(pool: Pool) -> list[psutil.Process]:
    children = psutil.Process(pool.pids()["supervisor"]).children()
    return [one for one in children if _is_cleanup(one)]


def _is_cleanup(process: psutil.Process) -> bool:
    """Whether it is a living cleanup process; one may end while it is asked."""
    with contextlib.suppress(psutil.NoSuchProcess):
        command = ["-m", "plumage_cli.local.folder.cleanup"]
        return process.status() != psutil.STATUS_ZOMBIE and process.cmdline()[1:3] == command
    return False


async def test_removed_files_and_sockets_are_restored(pool: Pool) -> None:
    names = {path.name for path in sockets_of(pool)}
    assert names == {
        "control.sock",
        "directory.sock",
        *(f"{name}-{i}" for name in ("events", "replay") for i in (0, 1)),
    }
    before, restarts = pool.pids(), pool.view()["routers"][0]["restarts"]
    await asyncio.sleep(1.5)  # the first check makes the second link of each
    for path in [*sockets_of(pool), *pool.folder.glob("*.json"), *pool.folder.glob("*key")]:
        path.unlink()
    async with asyncio.timeout(60):
        while not (pool.folder / "router.json").exists() or {path.name for path in sockets_of(pool)} != names:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert pool.pids() == before, "nothing was started again for it"
    os.kill(before["agent chat-0"], signal.SIGKILL)
    os.kill(before["router"], signal.SIGKILL)
    view = await pool.until(lambda view: whole(2)(view) and view["routers"][0]["restarts"] == restarts + 1)
    assert view["problems"] == []
    assert view["traffic"]["directory"] == "Fresh"
    assert lost(await load(pool, prompts(4, seed=3))) == []


async def test_connections_wait_while_the_router_restarts(pool: Pool) -> None:
    """The system queues them, or the supervisor accepts them for the next router."""
    router, restarts = psutil.Process(pool.pids()["router"]), pool.view()["routers"][0]["restarts"]
    router.kill()
    while router.is_running() and router.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    body = json.dumps(BODY).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    with ExitStack() as stack:
        asking = [
            stack.enter_context(socket.create_connection(("127.0.0.1", pool.port), timeout=90.0)) for _ in range(40)
        ]
        for one in asking:
            one.sendall(head + body)
        answers = [await asyncio.to_thread(one.recv, 12) for one in asking]
    assert set(answers) == {b"HTTP/1.1 200"}
    assert (await pool.until(whole(2)))["routers"][0]["restarts"] == restarts + 1


async def test_stopped_router_is_reported_as_unknown(pool: Pool) -> None:
    await pool.until(lambda view: view["traffic"].get("directory") == "Fresh")
    os.kill(pool.pids()["router"], signal.SIGSTOP)
    try:
        await pool.until(lambda view: view["traffic"]["directory"] == "Unknown")
    finally:
        os.kill(pool.pids()["router"], signal.SIGCONT)
    await pool.until(lambda view: view["traffic"]["directory"] == "Fresh")


async def test_killed_cleanup_process_is_restarted(pool: Pool) -> None:
    (first,) = cleanup_processes(pool)
    first.kill()
    async with asyncio.timeout(60):
        while not (now := cleanup_processes(pool)) or now[0].pid == first.pid:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_kill_9_of_parent_and_cleanup_process_leaves_nothing(pool: Pool) -> None:
    pids = pool.pids()
    (cleanup,) = cleanup_processes(pool)
    cleanup.kill()
    pool.process.kill()
    pool.process.wait()
    assert gone(pids) == {}
    async with asyncio.timeout(60):
        while pool.folder.exists():  # noqa: ASYNC110 - a folder has no event to wait for
            await asyncio.sleep(0.1)
    assert leftovers(pool.runtime, seconds=30.0) == []
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", pool.port))
