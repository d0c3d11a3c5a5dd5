"""The kinds of server that can hold a directory: a Cluster of three, a primary behind Sentinels, one with ACLs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from support.ports import free_ports

from plumage.directory.server.local_server import LocalServer
from plumage.directory.sharing.shared_stream import SharedStream

__all__ = ["ACL", "Sentinels", "cluster_of_three", "cluster_url", "eventually", "listens", "locked_server"]

SLOTS = 16384
# Every right that agents and routers need, as the module `connection` documents.
ACL = (
    "~plumage:* -@all +get +set +incrby +expire +pexpire +unlink +hset +hdel +hget +hmget +hgetall "
    "+xadd +xtrim +xrange +xrevrange +xread +xinfo|stream +info +ping"
)


def listens(exchange: SharedStream) -> bool:
    """Whether the client receives what others publish from now on. A client that has only published, and is not
    degraded, does not yet."""
    return exchange.after != "$"


def eventually(condition: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@contextmanager
def cluster_of_three(binary: Path, folder: Path) -> Iterator[list[int]]:
    """Starts three primaries that share the slots. Returns their ports."""
    ports = free_ports(3)
    with ExitStack() as stack:
        clients = []
        for port in ports:
            options = ("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes")
            stack.enter_context(LocalServer(folder / str(port), binary=binary, options=options))
            clients.append(stack.enter_context(redis.Redis(port=port)))
        for number, client in enumerate(clients):
            share = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
            client.execute_command("CLUSTER ADDSLOTS", *share)
            client.execute_command("CLUSTER MEET", "127.0.0.1", ports[0])
        eventually(lambda: all(b"cluster_state:ok" in _raw(client, "CLUSTER INFO") for client in clients))
        eventually(lambda: all(_raw(client, "CLUSTER NODES").count(b"connected") == 3 for client in clients))
        yield ports


def cluster_url(ports: list[int]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def _raw(client: redis.Redis, command: str) -> bytes:
    """The reply as the server sent it. The client would parse it."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*command.split())
        reply: bytes = connection.read_response()
        return reply
    finally:
        client.connection_pool.release(connection)


@contextmanager
def locked_server(binary: Path) -> Iterator[LocalServer]:
    """A server with two users and no others: `agent`, with the rights of `ACL`, and `root` for the tests."""
    with LocalServer(binary=binary) as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "agent", "on", ">p@ss word", *ACL.split())
        client.execute_command("ACL", "SETUSER", "root", "on", ">r00t", "~*", "+@all")
        client.execute_command("ACL", "SETUSER", "default", "off")
        yield server


class Sentinels:
    """A primary, its replica and a Sentinel that watches them."""

    def __init__(self, binary: Path, ports: list[int], folder: Path) -> None:
        self.primary_port, self.replica_port, self.port = ports
        listen = ("--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0", "--port")
        self.primary = LocalServer(folder / "a", binary=binary, options=(*listen, str(self.primary_port)))
        follow = ("--replicaof", f"127.0.0.1 {self.primary_port}")
        self.replica = LocalServer(folder / "b", binary=binary, options=(*listen, str(self.replica_port), *follow))
        self._binary, self._folder = binary, folder
        self._sentinel: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sentinels:
        self.primary.start()
        self.replica.start()
        with redis.Redis(port=self.replica_port) as client:
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
        config = self._folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._folder}\n"
            f"sentinel monitor fleet 127.0.0.1 {self.primary_port} 1\n"
            "sentinel down-after-milliseconds fleet 1500\nsentinel failover-timeout fleet 3000\n"
        )
        command = [self._binary, config, "--sentinel"]
        self._sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._knows_the_replica)
        return self

    def _knows_the_replica(self) -> bool:
        try:
            with redis.Redis(port=self.port) as client:
                return int(client.sentinel_master("fleet")["num-slaves"]) == 1
        except redis.RedisError:
            return False

    def __exit__(self, *_: object) -> None:
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait(10)
        self.replica.stop()
        self.primary.stop()

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/fleet"
