"""A changed batching policy reaches the engine that runs, and one that it won't take is said, not repeated."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from plumage_engine.agent.engine.client import EngineClient, EngineDownError
from plumage_engine.agent.engine_updates.batching_policy import BatchingPolicySender

TOKEN = "engine-token"


class Engine:
    """The route as engines have it. status: what it answers; words: what it was told."""

    def __init__(self) -> None:
        self.status, self.words = 204, []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                allowed = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.path == "/v1/plumage/feather"
                owner.words.append(json.loads(body))
                self.send_response(owner.status if allowed else 401)
                said = b"no policy named Banditt" if owner.status == 400 else b""
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def write(path: Path, feather: Any) -> Path:
    path.write_text(json.dumps({"feather": feather, "seed": 0}))
    return path


def link_to(engine: Engine, path: Path, again: float = 60.0) -> tuple[BatchingPolicySender, EngineClient]:
    client = EngineClient(engine.url, SecretStr(TOKEN))
    return BatchingPolicySender(path, client, again=again, rng=random.Random(1)), client


async def test_a_changed_file_is_told_and_an_unchanged_one_is_not(engine: Engine, tmp_path: Path) -> None:
    path = write(tmp_path / "plugin.json", {"policy": "Bandit"})
    link, client = link_to(engine, path)
    for _ in range(3):
        await link.send_if_due()
    write(path, {"policy": "Heuristic"})
    await link.send_if_due()
    write(path, None)  # vLLM's own order
    await link.send_if_due()
    await client.close()
    assert engine.words == [{"policy": "Bandit"}, {"policy": "Heuristic"}, None]
    assert link.counts["sent"] == 3


async def test_what_was_told_is_told_again_after_a_while(engine: Engine, tmp_path: Path) -> None:
    """An engine that was started anew may have read an older file."""
    link, client = link_to(engine, write(tmp_path / "plugin.json", {"policy": "Bandit"}), again=0.0)
    for _ in range(2):
        await link.send_if_due()
    await client.close()
    assert len(engine.words) == 2


async def test_a_refused_policy_is_said_once(engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine.status = 400
    path = write(tmp_path / "plugin.json", {"policy": "Banditt"})
    link, client = link_to(engine, path, again=0.0)
    for _ in range(2):
        await link.send_if_due()
    assert link.error is not None
    assert "no policy named Banditt" in link.error
    assert len([record for record in caplog.records if record.name.endswith("batching_policy")]) == 1
    engine.status = 204
    write(path, {"policy": "Bandit"})
    await link.send_if_due()
    await client.close()
    assert link.error is None
    assert (link.counts["refused"], link.counts["sent"]) == (2, 1)


async def test_an_engine_without_the_route_is_no_trouble(engine: Engine, tmp_path: Path) -> None:
    engine.status = 404
    link, client = link_to(engine, write(tmp_path / "plugin.json", {"policy": "Bandit"}))
    await link.send_if_due()
    await client.close()
    assert (link.counts["unwanted"], link.error) == (1, None)


@pytest.mark.parametrize("text", ["", "{}", "[]", "{"])
async def test_a_file_that_tells_nothing_changes_nothing(engine: Engine, tmp_path: Path, text: str) -> None:
    path = tmp_path / "plugin.json"
    path.write_text(text)
    link, client = link_to(engine, path)
    await link.send_if_due()
    await client.close()
    assert engine.words == []
    assert link.error is not None
    assert link.error.startswith("plugin.json tells no batching policy")


async def test_an_engine_that_is_away_is_told_when_it_is_back(engine: Engine, tmp_path: Path) -> None:
    engine.status = 503
    link, client = link_to(engine, write(tmp_path / "plugin.json", {"policy": "Bandit"}))
    with pytest.raises(EngineDownError):
        await link.send_if_due()
    engine.status = 204
    await link.send_if_due()
    await client.close()
    assert link.counts["sent"] == 1


async def test_an_operators_mark_goes_with_it(engine: Engine, tmp_path: Path) -> None:
    """So that the engine passes over what only a newer one knows."""
    path = tmp_path / "plugin.json"
    path.write_text(json.dumps({"feather": {"policy": "Bandit", "novelty": 1}, "writtenBy": "operator"}))
    link, client = link_to(engine, path)
    await link.send_if_due()
    await client.close()
    assert engine.words == [{"policy": "Bandit", "novelty": 1, "writtenBy": "operator"}]
