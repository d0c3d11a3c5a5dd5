"""Real simulated engines: a process each, stopped and checked at the end."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import forks
from support.ports import free_port

from plumage.models import resolve

API_KEY = "sk-test"
ADMIN_TOKEN = "fleet-test"


class Engine:
    """A running engine. `folder` holds its event sockets."""

    def __init__(self, folder: Path, process: forks.Fork, port: int) -> None:
        self.folder = folder
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.client = httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {API_KEY}"}, timeout=30)
        self.admin = httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {ADMIN_TOKEN}"}, timeout=30)

    @property
    def events(self) -> str:
        return f"ipc://{self.folder}/events"

    @property
    def replay(self) -> str:
        return f"ipc://{self.folder}/replay"

    def stats(self) -> dict[str, Any]:
        return self.admin.get("/v1/plumage/stats").raise_for_status().json()  # type: ignore[no-any-return]

    def chat(self, *contents: str, **more: Any) -> dict[str, Any]:
        """One chat completion; contents are the user's and the assistant's in turn."""
        messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)]
        body = {"model": "tiny", "messages": messages, **more}
        return self.client.post("/v1/chat/completions", json=body).raise_for_status().json()  # type: ignore[no-any-return]

    def until(self, condition: Any, seconds: float = 60.0) -> dict[str, Any]:
        """Poll the stats until they meet the condition."""
        deadline = time.monotonic() + seconds
        while not condition(stats := self.stats()):
            assert time.monotonic() < deadline, f"never met; last: {stats}"
            time.sleep(0.02)
        return stats


@contextmanager
def running(**changes: Any) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(prefix="sim-") as name:  # a short path: a Unix socket's is limited to 107 bytes
        folder = Path(name)
        (folder / "api-key").write_text(API_KEY + "\n")
        (folder / "token").write_text(ADMIN_TOKEN)
        port = free_port()
        config = {
            "model": "tiny",
            "modelFolder": str(resolve("builtin://tiny-chat")),
            "port": port,
            "eventsEndpoint": f"ipc://{folder}/events",
            "replayEndpoint": f"ipc://{folder}/replay",
            "apiKeyFile": str(folder / "api-key"),
            "adminTokenFile": str(folder / "token"),
            "device": {"preset": "gpu", "timeScale": 0.02},
            **changes,
        }
        (folder / "config.json").write_text(json.dumps(config))
        process = forks.start("plumage_engine.simulator", f"--config={folder / 'config.json'}")
        engine = Engine(folder, process, port)
        try:
            _await_health(engine)
            yield engine
        finally:
            engine.client.close()
            engine.admin.close()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()


def _await_health(engine: Engine) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert engine.process.poll() is None, "the engine did not start"
        try:
            if engine.client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """An engine shared by a module's tests."""
    with running(maxModelLen=4096) as started:
        yield started
    assert started.process.returncode == 0
