"""A changed batching policy reaches the running engine. A refused policy is logged and not sent again."""

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
    """An engine's route for the policy. status: its answer; policies: what it received."""

    def __init__(self) -> None:
        self.status, self.policies = 204, []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                allowed = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.path == "/v1/plumage/feather"
                owner.policies.append(json.loads(body))
                self.send_response(owner.status if allowed else 401)
                answer = b"no policy named Banditt" if owner.status == 400 else b""
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

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


async def test_only_a_changed_file_is_sent(engine: Engine, tmp_path: Path) -> None:
    path = write(tmp_path / "plugin.json", {"policy": "Bandit"})
    link, client = link_to(engine, path)
    for _ in range(3):
        await link.send_if_due()
    write(path, {"policy": "Heuristic"})
    await link.send_if_due()
    write(path, None)  # vLLM's own order
    await link.send_if_due()
    await client.close()
    assert engine.policies == [{"policy": "Bandit"}, {"policy": "Heuristic"}, None]
    assert link.counts["sent"] == 3


async def test_policy_is_sent_again_after_a_while(engine: Engine, tmp_path: Path) -> None:
    """A restarted engine may have read an older file."""
    link, client = link_to(engine, write(tmp_path / "plugin.json", {"policy": "Bandit"}), again=0.0)
    for _ in range(2):
        await link.send_if_due()
    await client.close()
    assert len(engine.policies) == 2


async def test_refused_policy_is_logged_once(engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


async def test_engine_without_the_route_is_no_error(engine: Engine, tmp_path: Path) -> None:
    engine.status = 404
    link, client = link_to(engine, write(tmp_path / "plugin.json", {"policy": "Bandit"}))
    await link.send_if_due()
    await client.close()
    assert (link.counts["unwanted"], link.error) == (1, None)


@pytest.mark.parametrize("text", ["", "{}", "[]", "{"])
async def test_file_without_policy_changes_nothing(engine: Engine, tmp_path: Path, text: str) -> None:
    path = tmp_path / "plugin.json"
    path.write_text(text)
    link, client = link_to(engine, path)
    await link.send_if_due()
    await client.close()
    assert engine.policies == []
    assert link.error is not None
    assert link.error.startswith("plugin.json has no batching policy")


async def test_policy_reaches_an_engine_that_was_away(engine: Engine, tmp_path: Path) -> None:
    engine.status = 503
    link, client = link_to(engine, write(tmp_path / "plugin.json", {"policy": "Bandit"}))
    with pytest.raises(EngineDownError):
        await link.send_if_due()
    engine.status = 204
    await link.send_if_due()
    await client.close()
    assert link.counts["sent"] == 1


async def test_operators_mark_is_sent_with_the_policy(engine: Engine, tmp_path: Path) -> None:
    """With it the engine ignores fields that only a newer operator knows."""
    path = tmp_path / "plugin.json"
    path.write_text(json.dumps({"feather": {"policy": "Bandit", "novelty": 1}, "writtenBy": "operator"}))
    link, client = link_to(engine, path)
    await link.send_if_due()
    await client.close()
    assert engine.policies == [{"policy": "Bandit", "novelty": 1, "writtenBy": "operator"}]
