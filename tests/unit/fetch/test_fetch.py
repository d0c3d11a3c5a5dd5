"""What an init container fetches of a model, from a hub that this test serves."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from plumage_engine.fetch import main

FILES = {
    "tokenizer.json": b'{"model": {}}',
    "config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"weights",
}
COMMIT = "c0ffee" + "0" * 34


class Hub(BaseHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(head=True)

    def do_GET(self) -> None:
        self.answer(head=False)

    def answer(self, *, head: bool) -> None:
        type(self).asked.append(self.path)
        if self.path.startswith("/api/models/org/model/revision/") or self.path.startswith("/api/models/org/model?"):
            siblings = [{"rfilename": name} for name in FILES]
            self.reply(json.dumps({"id": "org/model", "sha": COMMIT, "siblings": siblings}).encode(), head=head)
        elif self.path.startswith("/api/models/org/model/tree/"):
            files = [
                {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for name, body in FILES.items()
            ]
            self.reply(json.dumps(files).encode(), head=head)
        elif self.path.startswith("/org/model/resolve/") and (name := self.path.rpartition("/")[2]) in FILES:
            self.reply(FILES[name], head=head)
        else:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def reply(self, body: bytes, *, head: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if not head:
            self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield Hub
    server.shutdown()
    server.server_close()


def test_tokenizer_is_fetched_without_the_weights(hub: type[Hub], tmp_path: Path) -> None:
    assert main(["--uri=hf://org/model", f"--to={tmp_path}", "--revision=main"]) == 0
    found = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert found == {"tokenizer.json", "config.json", "chat_template.jinja"}
    assert not [path for path in hub.asked if "safetensors" in path]


def test_failed_fetch_writes_the_termination_message(
    hub: type[Hub], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    termination_log = tmp_path / "termination-log"
    assert main(["--uri=hf://org/other", f"--to={tmp_path / 'model'}"], termination_log) == 1
    assert "can't fetch hf://org/other" in termination_log.read_text()
    assert "can't fetch hf://org/other" in capsys.readouterr().err


def test_another_scheme_is_a_wrong_argument(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--uri=s3://bucket/model", f"--to={tmp_path}"])
    assert ended.value.code == 2
