"""An agent, and a probe, beside an engine that asks its clients for a certificate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support import forks
from support.agents import until
from support.port_certificates import PortCertificate
from support.ports import free_port
from tests.integration.agent.conftest import answers, settings_of

from plumage_engine.agent import probe

pytestmark = pytest.mark.redis


@pytest.fixture
def own(tmp_path: Path) -> PortCertificate:
    return PortCertificate(tmp_path / "engine", ["chat-engine.default.svc"])


@pytest.fixture
def routers(tmp_path: Path) -> PortCertificate:
    return PortCertificate(tmp_path / "client", ["routers"])


@pytest.fixture
def start_engine(tmp_path: Path, own: PortCertificate, routers: PortCertificate) -> Iterator[Callable[..., Any]]:
    """Starts it on a port, again if it has been killed."""
    started: list[forks.Fork] = []
    folder = tmp_path / "sockets"
    folder.mkdir()

    def start(port: int) -> Any:
        config = {
            "model": "tiny", "modelFolder": "builtin://tiny-chat", "port": port,
            "eventsEndpoint": f"ipc://{folder}/e", "replayEndpoint": f"ipc://{folder}/r",
            "tls": {**own.settings, "clientCaFile": str(routers.authority_file)},
        }  # fmt: skip
        file = tmp_path / "engine.json"
        file.write_text(json.dumps(config))
        started.append(forks.start("plumage_engine.simulator", f"--config={file}"))
        sockets = SimpleNamespace(endpoint=config["eventsEndpoint"], replay_endpoint=config["replayEndpoint"])
        return SimpleNamespace(url=f"https://127.0.0.1:{port}", sockets=sockets, process=started[-1])

    yield start
    for process in started:
        process.kill()
        process.wait(60)


def probed(port: int, shown: PortCertificate) -> int:
    return probe.main(
        ["--port", str(port), "--certificate", f"{shown.folder}/tls.crt", "--key", f"{shown.folder}/tls.key"]
    )


async def test_agent_shows_its_certificate_and_follows_renewals(
    directory, start_agent, start_engine, own: PortCertificate, routers: PortCertificate
) -> None:
    """The engine that starts again trusts the new authority only."""
    port, agent_port = free_port(), free_port()
    engine = start_engine(port)
    await until(lambda: probed(port, routers) == 0)
    start_agent(
        **settings_of(
            directory,
            "tls",
            engine,
            engine.sockets,
            agent_port,
            engineCertificateFile=f"{routers.folder}/tls.crt",
            engineCertificateKeyFile=f"{routers.folder}/tls.key",
        )
    )
    ready = f"http://127.0.0.1:{agent_port}/readyz"
    await answers(ready)
    routers.change_authority()
    own.change_authority()
    engine.process.kill()
    await answers(ready, 503)
    await asyncio.to_thread(engine.process.wait, 60)
    start_engine(port)
    await answers(ready)
    async with httpx.AsyncClient() as client:
        page = (await client.get(f"http://127.0.0.1:{agent_port}/metrics")).text
    assert "plumage_agent" in page


async def test_probe_says_why_it_failed(
    start_engine, routers: PortCertificate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    assert probed(port, routers) == 1
    assert "refused" in capfd.readouterr().err
    start_engine(port)
    await until(lambda: probed(port, routers) == 0)
    capfd.readouterr()
    assert probed(port, PortCertificate(tmp_path / "foreign", ["routers"])) == 1
    assert "the engine did not answer" in capfd.readouterr().err
    (routers.folder / "..data" / "tls.key").unlink()
    assert probed(port, routers) == 1
    assert "cannot be used" in capfd.readouterr().err
