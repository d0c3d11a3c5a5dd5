"""A real Envoy before a router's endpoint picker and small engines, with the configuration that users copy."""

from __future__ import annotations

import asyncio
import shutil
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from support.needs import missing
from support.ports import free_port

ROOT = Path(__file__).parents[4]
CONFIG = ROOT / "examples/endpoint-picker/envoy.yaml"


def envoy_program() -> str | None:
    return shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")


@dataclass
class Proxy:
    """Envoy, the router whose picker it asks, and its engines."""

    running: Any
    port: int
    picker_port: int
    process: Process

    @property
    def pool(self) -> Any:
        return self.running.router.pool

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.running._writers.append(writer)
        return reader, writer

    async def send(self, data: bytes, read_answer: Any) -> Any:
        reader, writer = await self.connect()
        writer.write(data)
        async with asyncio.timeout(30):
            return await read_answer(reader)


Before = Callable[..., Awaitable[Proxy]]


@pytest.fixture
async def behind_envoy(start: Any, kit: Any, tmp_path: Path) -> AsyncIterator[Before]:
    """`await behind_envoy(engines=2, change=…, …)`: change edits Envoy's configuration."""
    program = envoy_program()
    if program is None:
        missing("Envoy", "pip install 'plumage-llm[dev]'")
    processes: list[Process] = []

    async def begin(
        *, change: Callable[[Any, Any], None] | None = None, picker: Any = MappingProxyType({}), **config: Any
    ) -> Proxy:
        running = await start(endpointPicker={"port": 0, **picker}, **config)
        picker_port = int(running.router.endpoint_picker.addresses[0].rpartition(":")[2])
        port, folder = free_port(), tmp_path / f"envoy-{len(processes)}"
        folder.mkdir()
        settings = configured(port, picker_port)
        if change is not None:
            change(settings, running)
        file = folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(settings))
        command = [program, "-c", file, "--concurrency", "1", "-l", "warning", "--disable-hot-restart"]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*map(str, command), stdout=log, stderr=log)
        processes.append(process)
        await listening(port, process)
        return Proxy(running, port, picker_port, process)

    yield begin
    for process in processes:
        process.kill()
        await process.wait()


def configured(port: int, picker_port: int) -> Any:
    """The example with other ports."""
    settings = yaml.safe_load(CONFIG.read_text())
    resources = settings["static_resources"]
    resources["listeners"][0]["address"]["socket_address"]["port_value"] = port
    (picker,) = (cluster for cluster in resources["clusters"] if cluster["name"] == "picker")
    endpoint = picker["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"]["socket_address"]["port_value"] = picker_port
    return settings


async def listening(port: int, process: Process) -> None:
    """Waits until Envoy accepts connections. What it says is in the file `log` of its folder."""
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, "Envoy ended"
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
