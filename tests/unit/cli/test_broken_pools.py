"""Commands against a pool that does not answer properly print one sentence and exit with 1, without a traceback."""

from __future__ import annotations

import http.server
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from typer.testing import CliRunner

from plumage.errors import PlumageError
from plumage_cli.commands import doctor, explain, scale, status
from plumage_cli.local.folder.pool_folder import CONTROL_SOCKET, PoolFolder
from plumage_cli.local.pool_view import PoolView, check

CHILD = {"pid": 7, "state": "Running", "restarts": 0, "lastExit": None}
REPLICA = {
    "id": "chat-0", "state": "Ready", "url": "http://127.0.0.1:1", "agentUrl": "http://127.0.0.1:2",
    "engine": CHILD, "agent": CHILD,
}  # fmt: skip
VIEW: dict[str, Any] = {
    "pool": "chat", "pid": 5, "endpoint": "http://127.0.0.1:9", "started": 1.0, "model": "m", "policy": "Lbgr",
    "eviction": "Lru", "routers": [CHILD], "directory": None, "replicas": [REPLICA], "problems": [], "traffic": {},
}  # fmt: skip
COMMANDS = {
    "status": (status.app, []),
    "scale": (scale.app, ["1"]),
    "explain": (explain.app, ["x"]),
}
Answering = Callable[[bytes], None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a pool whose lock is held."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    pool = PoolFolder.take("chat")
    yield pool.path
    pool.remove()


@pytest.fixture
def answering(folder: Path) -> Iterator[Answering]:
    """A server that answers each request with the same bytes."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / CONTROL_SOCKET))
    server.listen()
    threads = []

    def serve(reply: bytes) -> None:
        with server:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(reply)
            except OSError:
                return

    def start(reply: bytes) -> None:
        threads.append(threading.Thread(target=serve, args=(reply,)))
        threads[-1].start()

    yield start
    server.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(20.0)
    server.close()


def refused(command: str, *given: str) -> str:
    """What the command prints instead of its result."""
    app, arguments = COMMANDS[command]
    done = CliRunner().invoke(app, given or arguments)
    assert isinstance(done.exception, PlumageError), done.exception
    return str(done.exception)


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"\x00\xff{{\n", "an incomplete reply"),
        (b'{"pool": "cha', "an incomplete reply"),
        (b"[" * 100_000 + b"\n", "an incomplete reply"),
        (b"", "ended before it answered"),
        (b"[1]\n", "another version of plumage"),
        (b"5\n", "another version of plumage"),
        (json.dumps({"pool": "chat", "replicas": [], "endpoint": None}).encode() + b"\n", "another version of plumage"),
        (json.dumps(VIEW | {"replicas": {"a": 1}}).encode() + b"\n", "another version of plumage"),
        (b'{"error": 5}\n', "^5$"),
    ],
)
def test_invalid_answer_is_reported(answering: Answering, command: str, reply: bytes, message: str) -> None:
    answering(reply)
    assert re.search(message, refused(command))


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_missing_socket_is_reported(folder: Path, command: str) -> None:
    assert "it may be starting or ending" in refused(command)


def test_silent_pool_is_reported(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / CONTROL_SOCKET))
        server.listen()
        assert "did not answer within 0.5 s: it is busy or stopped" in refused("scale", "1", "--timeout", "0.5")


def test_starting_pool_is_reported(answering: Answering) -> None:
    answering(json.dumps(VIEW | {"endpoint": None, "routers": [], "replicas": []}).encode() + b"\n")
    assert "its router has no requests yet" in refused("explain")
    done = CliRunner().invoke(status.app, [])
    assert done.exit_code == 0
    assert "pool chat is starting (pid 5)" in done.output


def test_missing_key_is_reported(answering: Answering) -> None:
    answering(json.dumps(VIEW).encode() + b"\n")
    assert "can't read the router's admin key" in refused("explain")


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"{}", "pool chat is run by another version of plumage"),
        (200, b"hello", "the router's answer is not JSON"),
        (404, b"", "the router does not know request a/b"),
        (500, b"", "the router answered with status 500"),
    ],
)
def test_unexpected_answer_of_the_router_is_reported(
    folder: Path, answering: Answering, status: int, body: bytes, message: str
) -> None:
    paths = []

    class Router(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    (folder / "admin.key").write_text("key")
    with http.server.HTTPServer(("127.0.0.1", 0), Router) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        answering(json.dumps(VIEW | {"endpoint": f"http://127.0.0.1:{server.server_port}"}).encode() + b"\n")
        assert message in refused("explain", "a/b")
        thread.join(20.0)
    assert paths == ["/plumage/v1/explain/a%2Fb"]


def test_request_id_that_fits_no_address_is_refused(folder: Path, answering: Answering) -> None:
    (folder / "admin.key").write_text("key")
    answering(json.dumps(VIEW).encode() + b"\n")
    assert "the router does not answer: InvalidURL" in refused("explain", "x" * 100_000)


def test_doctor_names_the_pool_and_continues(answering: Answering) -> None:
    answering(b"5\n")
    port = free_port()
    done = CliRunner().invoke(doctor.app, ["--port", str(port)])
    assert done.exit_code == 1
    assert " bad  pool chat is run by another version of plumage" in done.output
    assert f"port {port} is free" in done.output


def test_doctor_names_the_log_of_a_lost_process(folder: Path, answering: Answering) -> None:
    answering(
        json.dumps(VIEW | {"routers": [CHILD | {"restarts": 2, "lastExit": "ended with status 1"}]}).encode() + b"\n"
    )
    done = CliRunner().invoke(doctor.app, ["--port", str(free_port())])
    warning = f"warn  the router was restarted 2 times: it ended with status 1 → see {folder}/router.log"
    assert warning in done.output


def test_invalid_lock_is_no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "plumage").mkdir(mode=0o700)
    (tmp_path / "plumage" / "chat" / "lock").mkdir(parents=True)
    assert refused("status").startswith("no pool is running")
    done = CliRunner().invoke(doctor.app, ["--port", str(free_port())])
    assert done.exit_code == 0
    assert "left its folder behind" not in done.output
    assert list((tmp_path / "plumage" / "chat" / "lock").iterdir()) == []


def test_search_for_pools_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "plumage").mkdir(mode=0o700)
    (tmp_path / "plumage" / "precious").mkdir()
    assert refused("status").startswith("no pool is running")
    CliRunner().invoke(doctor.app, ["--port", str(free_port())])
    assert [path.name for path in (tmp_path / "plumage").rglob("*")] == ["precious"]


def test_doctor_reports_a_folder_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "plumage").mkdir(mode=0o755)
    port = free_port()
    done = CliRunner().invoke(doctor.app, ["--port", str(port)])
    assert done.exit_code == 1
    assert " bad  no folder for state" in done.output


@pytest.mark.parametrize("timeout", ["-1", "nan", "inf", "0"])
def test_invalid_timeout_is_refused(timeout: str) -> None:
    assert CliRunner().invoke(scale.app, ["1", "--timeout", timeout]).exit_code == 2


def test_view_of_a_newer_version_may_have_more_fields() -> None:
    check(VIEW | {"color": "red"}, "chat")


@pytest.mark.parametrize("field", sorted(PoolView.__annotations__))
def test_view_without_a_required_field_is_refused(field: str) -> None:
    with pytest.raises(PlumageError, match="another version"):
        check({name: value for name, value in VIEW.items() if name != field}, "chat")
