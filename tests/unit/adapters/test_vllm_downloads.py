"""What is downloaded of an adapter's repository, what a failed download says, and how many may hang."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plumage_engine.adapter_files import download
from plumage_engine.adapters import AdapterError
from plumage_engine.vllm.routes.adapters import VllmAdapters

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "S3CRET"


class Hub(http.server.ThreadingHTTPServer):
    """A hub with one repository, acme/law. files: by name. status: of all answers, where it is not 0."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files: dict[str, bytes] = {}
        self.status = 0
        self.got: list[str] = []


class _Answers(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path, hub = self.path.partition("?")[0], self.server
        name = path.rpartition("/")[2]
        if hub.status:
            self._answer(hub.status, b"")
        elif "/tree/" in path:
            entries = [
                {"type": "file", "path": file, "size": len(data), "oid": file} for file, data in hub.files.items()
            ]
            self._answer(200, json.dumps(entries).encode())
        elif path.startswith("/api/"):
            siblings = [{"rfilename": file} for file in hub.files]
            self._answer(200, json.dumps({"id": "acme/law", "sha": COMMIT, "siblings": siblings}).encode())
        elif name in hub.files:
            if self.command == "GET":
                hub.got.append(name)
            self._answer(200, hub.files[name])
        else:
            self._answer(404, b"", {"x-error-code": "EntryNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"content-length": str(len(body)), "etag": f'"{hash(body) & 0xFFFFFFFF:x}"', "x-repo-commit": COMMIT}
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://user:{SECRET}@127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def made(get: Callable[[str], str] = download) -> VllmAdapters:
    return VllmAdapters(SimpleNamespace(lora_requests={}), None, get)


async def test_only_the_adapters_files_are_downloaded(hub: Hub) -> None:
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    hub.files = adapter | {"model-00001-of-00002.safetensors": b"base", "optimizer.pt": b"state", "README.md": b"text"}
    folder = await made().fetch("acme/law")
    assert set(os.listdir(folder)) == set(adapter)
    assert hub.got[0] == "adapter_config.json"
    assert set(hub.got) == set(adapter)


async def test_repository_without_an_adapter_is_not_downloaded(hub: Hub) -> None:
    hub.files = {"model.safetensors": b"base", "tokenizer.json": b"{}"}
    with pytest.raises(AdapterError, match=r"^there is no adapter_config.json in acme/law$"):
        await made().fetch("acme/law")
    assert hub.got == []


@pytest.mark.parametrize("status", [401, 403, 404, 500])
async def test_failed_download_shows_no_secret_of_the_hubs_address(
    hub: Hub, status: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda seconds: None))
    hub.status = status
    with pytest.raises(AdapterError) as caught:
        await made().fetch("acme/law")
    message = str(caught.value)
    assert message.startswith("acme/law cannot be downloaded: ")
    assert SECRET not in message + caplog.text
    assert "http://" not in message
    assert f"HTTP {status}" in message or status == 500, "the hub's client hides an answer of 500"
    assert caught.value.__cause__ is None


async def test_few_downloads_may_hang_and_a_source_has_one(tmp_path: Path) -> None:
    go, asked = threading.Event(), []
    (tmp_path / "adapter_config.json").write_text("{}")

    def slow(source: str) -> str:
        asked.append(source)
        go.wait()
        return str(tmp_path)

    adapters = made(slow)
    try:
        for source in [f"acme/{number}" for number in range(16)] * 2:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(adapters.fetch(source), 0.001)
        assert len(asked) == 16, "who asks again joins the thread"
        with pytest.raises(AdapterError, match="16 downloads hang"):
            await adapters.fetch("acme/more")
    finally:
        go.set()
    assert await adapters.fetch("acme/0") == str(tmp_path)


async def test_ids_of_unloaded_adapters_are_bounded() -> None:
    requests: dict[str, Any] = {}
    models = SimpleNamespace(lora_requests=requests)
    adapters = VllmAdapters(models, SimpleNamespace(unload=lambda models, name: models.lora_requests.pop(name)))
    for number in range(300):
        requests[f"a{number}"] = SimpleNamespace(lora_path="/a")
        await adapters.unload(f"a{number}")
    assert len(adapters._left) == 256
    assert "a299" in adapters._left
