"""Local mode's server: it starts, serves only this pool, ends with its supervisor, and reports the remedy if it can't
start."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis

from plumage.directory.server import local_server as server_module
from plumage.directory.server.local_server import LocalServer, ServerError, find_server
from plumage.errors import ConfigurationError, StateError

PARENT = """
import sys, time
from pathlib import Path
from plumage.directory.server.local_server import LocalServer
server = LocalServer(Path(sys.argv[1]))
server.start()
print("started", flush=True)
time.sleep(60)
"""


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process with this folder in its command line."""
    running = psutil.process_iter(["cmdline"])
    return [one for one in running if any(str(folder) in word for word in one.info["cmdline"] or ())]


def gone(folder: Path, within: float = 30.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not folder.exists() and not processes_of(folder):
            return True
        time.sleep(0.02)
    return False


def ping(server: LocalServer) -> bool:
    with redis.Redis.from_url(server.url) as client:
        return bool(client.ping())


def test_server_starts_stops_and_leaves_nothing(binary: Path, tmp_path: Path) -> None:
    server = LocalServer(tmp_path / "d", binary=binary)
    with server:
        assert server.running
        assert ping(server)
        assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
        listening = [c for p in processes_of(tmp_path / "d") for c in p.net_connections("inet")]
        assert listening == [], "no TCP port"
        with redis.Redis.from_url(server.url) as client:
            wanted = client.config_get("maxmemory*")
            assert (int(wanted["maxmemory"]), wanted["maxmemory-policy"]) == (512 << 20, "noeviction")
            assert client.config_get("save")["save"] == client.config_get("appendonly")["appendonly"][3:] == ""
    assert not server.running
    assert gone(tmp_path / "d")
    server.stop()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_server_ends_with_parent(binary: Path, tmp_path: Path, end: signal.Signals) -> None:
    folder = tmp_path / "d"
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        assert processes_of(folder)
        parent.send_signal(end)
        parent.wait(10)
    assert gone(folder)


def test_server_without_folder_ends_with_killed_parent(binary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        shutil.rmtree(folder)
        parent.kill()
        parent.wait(10)
    assert gone(folder)


def test_killed_server_restarts_at_same_address(binary: Path, tmp_path: Path) -> None:
    with LocalServer(tmp_path / "d", binary=binary) as server:
        url = server.url
        for process in processes_of(tmp_path / "d"):
            with contextlib.suppress(psutil.NoSuchProcess):  # one may end by itself once another is killed
                if "server" in process.name():
                    process.kill()
        deadline = time.monotonic() + 30
        while server.running:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        server.start()
        assert server.url == url
        assert ping(server)
    assert gone(tmp_path / "d")


def test_killed_guard_ends_server(binary: Path, tmp_path: Path) -> None:
    with LocalServer(tmp_path / "d", binary=binary) as server:
        guard = server._process
        assert guard is not None
        guard.kill()
        guard.wait(5)
    assert gone(tmp_path / "d")


def test_failed_start_names_cause(binary: Path, tmp_path: Path) -> None:
    server = LocalServer(tmp_path / "d", binary=binary, options=("--no-such-setting", "1"))
    with pytest.raises(ServerError, match=r"(?s)ended at once.*no-such-setting"):
        server.start()
    assert gone(tmp_path / "d")


def test_second_start_and_foreign_folder_are_refused(binary: Path, tmp_path: Path) -> None:
    with LocalServer(tmp_path / "d", binary=binary) as server:
        with pytest.raises(StateError, match="runs already"):
            server.start()
        with pytest.raises(ConfigurationError, match="exists already"):
            LocalServer(tmp_path / "d", binary=binary).start()
        assert ping(server)


def test_too_long_socket_path_is_refused(binary: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="at most 107: choose a shorter folder"):
        LocalServer(tmp_path / ("x" * 100), binary=binary)


def test_full_disk_is_reported(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(ConfigurationError, match="No space left on device; free some space, or choose another"):
        LocalServer(tmp_path / "d", binary=binary).start()


def test_uncreatable_folder_is_reported(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="Not a directory"):
        LocalServer(tmp_path / "file" / "d", binary=binary).start()


def test_new_enough_system_server_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake = tmp_path / "redis-server"
    fake.write_text("#!/bin/sh\necho 'Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc'\n")
    fake.chmod(0o755)
    assert find_server() == fake
    fake.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc'\n")
    assert find_server() != fake, "streams can't be trimmed by id before 6.2"


def test_missing_server_names_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(server_module, "_carried", lambda: None)
    with pytest.raises(ConfigurationError, match="install redis-server or valkey-server"):
        find_server()
