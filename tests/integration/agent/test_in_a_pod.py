"""An agent as it runs in a pod: its token, its replica's name, authorization, and draining."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import forks
from support.agents import ask, running, served, settings, until
from support.ports import free_port

from plumage.directory.server.local_server import LocalServer
from plumage.fleet_report import read_agent_report

pytestmark = pytest.mark.redis

DRAIN = [sys.executable, "-m", "plumage_engine.agent.drain"]


def test_agent_reads_name_from_command_and_writes_token(
    directory: LocalServer, stock: Any, start_publisher: Callable[..., Any], tmp_path: Path
) -> None:
    """The token exists before the agent serves, since the engine beside it starts then. A restarted agent keeps it."""
    publisher, port = start_publisher(), free_port()
    token = tmp_path / "run" / "token"
    token.parent.mkdir()
    config = tmp_path / "agent.json"
    config.write_text(
        json.dumps(
            {
                "pool": "named", "model": "tiny", "modelFolder": "builtin://tiny-chat", "engineUrl": stock.url,
                "eventsEndpoint": publisher.endpoint, "directoryUrl": directory.url, "tokenFile": str(token),
                "engineTokenFile": str(token), "listen": {"host": "0.0.0.0", "port": port}, "loadSeconds": 0.05,
            }
        )
    )  # fmt: skip
    found = []
    for _ in range(2):
        process = forks.start("plumage_engine.agent", f"--config={config}", "--replica=chat-engine-7f-x")
        try:
            _answers(f"http://127.0.0.1:{port}/healthz")
            found.append(token.read_text())
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
            headers = {"Authorization": f"Bearer {found[-1]}"}
            report = httpx.get(f"http://127.0.0.1:{port}/v1/plumage/stats", headers=headers, timeout=30)
            assert read_agent_report(report.content).replica == "chat-engine-7f-x"
        finally:
            process.terminate()
            assert process.wait(60) == 0
    assert found[0] == found[1]
    assert len(found[0]) >= 32
    assert [path.name for path in token.parent.iterdir()] == ["token"]


def _answers(url: str) -> None:
    for _ in range(1200):
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    pytest.fail(f"{url} did not answer")


async def test_report_to_the_operator(directory: LocalServer, make_engine: Callable[..., Any]) -> None:
    """Counters, the cache's size, wait times and warm-up of an engine that has served requests."""
    engine = await asyncio.to_thread(make_engine)
    async with running(settings(directory, "report", engine)) as agent, served(agent, free_port()) as url:
        await until(lambda: agent.watch.ready)
        for _ in range(2):
            await ask(engine, "the same words again and again " * 40, max_tokens=4)
        await until(lambda: agent.watch.load.hit_tokens > 0)
        async with httpx.AsyncClient(timeout=30) as http:
            data = (await http.get(f"{url}/v1/plumage/stats")).content
    report = read_agent_report(data)
    assert (report.state, report.why, report.warmup.state) == ("Ready", None, "Warmed")
    assert report.cache_tokens == 2000 * 16
    assert report.output_tokens == 8
    assert report.query_tokens > report.hit_tokens > 0
    assert (report.queue_wait.count, report.ttft.count) == (2, 2)
    assert report.started > 1e9
    assert json.loads(data)["blocks"] > 0, "figures for people are there as well"


async def test_agent_names_loading_engine_in_readiness(
    directory: LocalServer, stock: Any, start_publisher: Callable[..., Any]
) -> None:
    publisher = start_publisher()
    stock.events, stock.replay = publisher.endpoint, publisher.replay_endpoint
    absent = {"engineUrl": f"http://127.0.0.1:{free_port()}"}
    async with running(settings(directory, "loading", stock, **absent)) as agent, served(agent, free_port()) as url:
        await asyncio.sleep(1.0)  # many checks
        async with httpx.AsyncClient(timeout=30) as http:
            ready = await http.get(f"{url}/readyz")
            report = read_agent_report((await http.get(f"{url}/v1/plumage/stats")).content)
        assert ready.status_code == 503
        assert "its engine does not answer yet" in ready.json()["why"]
        assert (report.state, report.warmup.state) == ("Warming", "Waiting")


async def _run(*command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_prestop_waits_for_requests_in_flight(
    directory: LocalServer, stock: Any, start_publisher: Callable[..., Any], tmp_path: Path
) -> None:
    publisher, port = start_publisher(), free_port()
    stock.events, stock.replay = publisher.endpoint, publisher.replay_endpoint
    token = tmp_path / "token"
    token.write_text("of this pod")
    stock.running, stock.working = 1, True
    drain = [*DRAIN, "--port", str(port), "--token-file", str(token)]
    config = settings(directory, "prestop", stock, tokenFile=str(token))
    async with running(config) as agent, served(agent, port):
        await until(lambda: agent.watch.ready)
        code, said = await _run(*drain, "--timeout", "0.5")
        assert (code, agent.watch.ready) == (1, False)
        assert "the time was up" in said
        assert '"inFlight":1' in said.replace(" ", "")

        waiting = asyncio.create_task(_run(*drain, "--timeout", "60"))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        stock.running = 0
        assert await waiting == (0, "")

        wrong = tmp_path / "wrong"
        wrong.write_text("of another pod")
        code, said = await _run(*DRAIN, "--port", str(port), "--token-file", str(wrong), "--timeout", "5")
        assert code == 1
        assert "401" in said


async def test_prestop_ends_without_agent_or_engine(
    directory: LocalServer, stock: Any, start_publisher: Callable[..., Any], tmp_path: Path
) -> None:
    nobody = [*DRAIN, "--port", str(free_port()), "--token-file", str(tmp_path / "none"), "--timeout", "60"]
    code, said = await _run(*nobody)
    assert code == 0
    assert "nothing to wait for" in said

    publisher, port = start_publisher(), free_port()
    stock.events, stock.replay = publisher.endpoint, publisher.replay_endpoint
    stock.running = 3
    async with running(settings(directory, "gone", stock)) as agent, served(agent, port):
        await until(lambda: agent.watch.ready)
        await asyncio.to_thread(stock.close)
        code, _ = await _run(*DRAIN, "--port", str(port), "--token-file", str(tmp_path / "none"), "--timeout", "60")
    assert code == 0
