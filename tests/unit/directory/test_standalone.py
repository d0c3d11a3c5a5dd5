"""The directory's server of a pool in a cluster: this process becomes it, on TCP, bounded, without files on disk."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, OutOfMemoryError
from support.ports import free_ports

from plumage.directory.server.local_server import find_server
from plumage.directory.server.standalone import command

pytestmark = pytest.mark.redis


def test_server_listens_on_tcp_within_its_memory_and_writes_no_file(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    line = [sys.executable, "-m", "plumage.directory.server.standalone", f"--port={port}", "--max-memory=20000000"]
    server = subprocess.Popen([*line, f"--folder={tmp_path}"], stdout=subprocess.DEVNULL)
    try:
        with Redis(port=port, socket_timeout=10) as client:
            until_answers(client)
            assert client.config_get("maxmemory") == {"maxmemory": "20000000"}
            with pytest.raises(OutOfMemoryError):
                fill(client)
        server.terminate()
        assert server.wait(20) == 0
        assert list(tmp_path.iterdir()) == []
    finally:
        server.kill()
        server.wait()


def fill(client: Redis) -> None:
    for number in range(100):
        client.set(str(number), b"x" * 1_000_000)


def until_answers(client: Redis) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            client.ping()
            return
        except ConnectionError:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_server_listens_on_all_addresses_of_both_families() -> None:
    line = command(find_server(), 6379, 1, Path("/tmp"))
    assert line[line.index("--bind") + 1] == "* -::*"
