"""The Secrets of an external directory change: the password, and the CA of its certificate. The files are read at each
connection. So open connections stay, and broken ones are restored once the file is new."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from cluster.certificates import Authority
from support.directories import locked_server
from support.following import in_step

from plumage.directory.client.file_options import with_file_options
from plumage.directory.schema import Change, Tier
from plumage.directory.server.local_server import LocalServer

CHAIN = list(range(1, 11))
WHOLE = (10, 640)


def held(chain: list[int]) -> list[Change]:
    return [Change(chunk, Tier.GPU, 64 * (depth + 1)) for depth, chunk in enumerate(chain)]


@pytest.fixture
def locked(binary: Path) -> Iterator[LocalServer]:
    with locked_server(binary) as server:
        yield server


async def test_new_password_is_read_from_file(
    locked: LocalServer, world_at: Any, until: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss word")
    world = world_at(with_file_options(f"unix://{locked.socket}", "agent", file, None))
    writer, router = await world.writer(heartbeat_seconds=0.05), await world.router()
    writer.publish(held(CHAIN[:6]))
    await until(lambda: in_step(writer, router))

    def rotate() -> None:
        with redis.Redis(unix_socket_path=str(locked.socket), username="root", password="r00t") as root:
            root.execute_command("ACL", "SETUSER", "agent", "resetpass", ">n3xt w0rd")
            root.execute_command("CLIENT", "KILL", "USER", "agent")

    await asyncio.to_thread(rotate)
    await until(lambda: writer.degraded and router.degraded)
    writer.publish(held(CHAIN))
    assert router.mirror.match(CHAIN) == {0: (6, 384)}, "what was known is kept"
    file.write_text("n3xt w0rd\n")
    await until(lambda: in_step(writer, router) and not writer.degraded and not router.degraded)
    assert router.mirror.match(CHAIN) == {0: WHOLE}
    assert "w0rd" not in caplog.text


async def test_new_authority_is_read_from_file(
    binary: Path, relay_to: Any, world_at: Any, until: Any, tmp_path: Path
) -> None:
    with LocalServer(binary=binary) as server:
        context, relay = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), relay_to(server.socket)
        serve(context, tmp_path, Authority.create("old"))
        url = f"rediss://127.0.0.1:{await relay.listen_tls(context)}"
        world = world_at(with_file_options(url, None, None, tmp_path / "ca.crt"))
        writer, router = await world.writer(heartbeat_seconds=0.05), await world.router()
        writer.publish(held(CHAIN[:6]))
        await until(lambda: in_step(writer, router))

        new = Authority.create("new")
        old = (tmp_path / "ca.crt").read_bytes()
        serve(context, tmp_path, new)
        fresh = (tmp_path / "ca.crt").read_bytes()
        (tmp_path / "ca.crt").write_bytes(old)  # the kubelet updates the file later
        relay.cut()
        await until(lambda: writer.degraded and router.degraded)
        writer.publish(held(CHAIN))
        (tmp_path / "ca.crt").write_bytes(fresh)
        await until(lambda: in_step(writer, router) and not writer.degraded and not router.degraded)
        assert router.mirror.match(CHAIN) == {0: WHOLE}


def serve(context: ssl.SSLContext, folder: Path, authority: Authority) -> None:
    """From now on with a certificate of that CA, whose own certificate is in `ca.crt`."""
    authority.write(folder, "ca")
    authority.issue(folder, "server", "directory", ["127.0.0.1"])
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
