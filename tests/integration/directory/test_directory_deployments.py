"""The same directory on a Cluster of three, behind Sentinels with a failover, and over TLS with an ACL user."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from support.directories import Sentinels, cluster_of_three, cluster_url, locked_server
from support.following import in_step

from plumage.directory.schema import Change, Keys, State, Tier
from plumage.directory.server.local_server import LocalServer

RNG = random.Random(1)
CHAIN = [RNG.getrandbits(64) for _ in range(10)]
WHOLE = (10, 640)


def held(chain: Sequence[int]) -> list[Change]:
    return [Change(chunk, Tier.GPU, 64 * (depth + 1)) for depth, chunk in enumerate(chain)]


@pytest.fixture
def cluster(binary: Path, tmp_path: Path) -> Iterator[list[int]]:
    with cluster_of_three(binary, tmp_path) as ports:
        yield ports


async def test_redis_cluster_of_three_serves(cluster: list[int], world_at: Any, until: Any) -> None:
    world = world_at(cluster_url(cluster))
    names = [f"chat-{number}" for number in range(8)]
    writers = [await world.writer(name, heartbeat_seconds=0.2) for name in names]
    router = await world.router(*names)
    for depth, writer in enumerate(writers):
        writer.publish(held(CHAIN[: depth + 1]))
    wanted = {slot: (slot + 1, 64 * (slot + 1)) for slot in range(8)}
    await until(lambda: router.mirror.match(CHAIN) == wanted)
    for writer in writers:
        writer.publish(held(CHAIN))
        writer.report(state=State.READY)
    await until(lambda: router.mirror.match(CHAIN) == dict.fromkeys(range(8), WHOLE))
    await until(lambda: all(router.view(name).state is State.READY for name in names))
    sizes = []
    for port in cluster:
        with redis.Redis(port=port) as node:
            sizes.append(node.dbsize())
    assert sum(sizes) == 8 * 4
    assert sum(size > 0 for size in sizes) >= 2, f"replicas are spread over the nodes: {sizes}"
    assert not router.degraded


async def test_replica_leaves_redis_cluster(cluster: list[int], world_at: Any, until: Any) -> None:
    world = world_at(f"redis+cluster://127.0.0.1:{cluster[0]}")
    writers = [await world.writer(name) for name in ("r0", "r1")]
    router = await world.router("r0", "r1")
    for writer in writers:
        writer.publish(held(CHAIN))
    await until(lambda: set(router.mirror.match(CHAIN)) == {0, 1})
    router.set_replicas({"r1": 1})
    assert router.mirror.match(CHAIN) == {1: WHOLE}
    writers[1].publish([Change(CHAIN[-1], Tier.GONE)])
    await until(lambda: router.mirror.match(CHAIN) == {1: (9, 576)})


async def test_sentinel_failover_restores_cache(sentinels: Sentinels, world_at: Any, until: Any) -> None:
    world = world_at(sentinels.url)
    writer, router = await world.writer(heartbeat_seconds=0.2), await world.router()
    writer.publish(held(CHAIN[:6]))
    await until(lambda: in_step(writer, router))
    await asyncio.to_thread(sentinels.primary.stop)
    writer.publish(held(CHAIN))
    matches = set()

    def whole_again() -> bool:
        matches.add(router.mirror.match(CHAIN)[0])
        return in_step(writer, router) and not router.degraded and not writer.degraded

    await until(whole_again, within=60.0)
    assert router.mirror.match(CHAIN) == {0: WHOLE}
    assert matches <= {(6, 384), WHOLE}, "nothing was forgotten on the way"
    await until(lambda: router.counts["snapshot_failover"] == 1)
    with redis.Redis(port=sentinels.replica_port) as client:
        assert client.info("replication")["role"] == "master"
        assert client.exists(Keys("p", "r0").beat)


@pytest.fixture
def locked(binary: Path) -> Iterator[LocalServer]:
    with locked_server(binary) as server:
        yield server


@pytest.fixture
async def tls_port(locked: LocalServer, certificates: Path, relay_to: Any) -> int:
    """A TLS proxy in front of it, since not every build of the server supports TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    port: int = await relay_to(locked.socket).listen_tls(context)
    return port


async def test_tls_with_acl_user_connects(tls_port: int, certificates: Path, world_at: Any, until: Any) -> None:
    url = f"rediss://agent:p%40ss%20word@127.0.0.1:{tls_port}?ssl_ca_certs={certificates / 'ca.pem'}"
    world = world_at(url)
    writer, router = await world.writer(heartbeat_seconds=0.05), await world.router()
    writer.publish(held(CHAIN))
    writer.report(state=State.READY)
    await until(lambda: router.mirror.match(CHAIN) == {0: WHOLE} and router.view("r0").state is State.READY)
    for _ in range(200):
        writer.publish([Change(RNG.getrandbits(64), Tier.GPU, 1) for _ in range(40)])
    await until(lambda: in_step(writer, router))
    assert not writer.degraded
    assert writer.registrations == 1


@pytest.mark.parametrize("wrong", ["password", "authority"])
async def test_refused_client_is_degraded_and_logs_no_secret(
    tls_port: int, certificates: Path, world_at: Any, until: Any, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    password = "wr0ng-s3cret" if wrong == "password" else "p%40ss%20word"
    trusted = f"?ssl_ca_certs={certificates / 'ca.pem'}" if wrong == "password" else ""
    world = world_at(f"rediss://agent:{password}@127.0.0.1:{tls_port}{trusted}")
    writer, router = await world.writer(), await world.router()
    writer.publish(held(CHAIN))
    await until(lambda: writer.degraded and router.counts["failures"] > 1)
    assert router.degraded
    assert router.mirror.match(CHAIN) == {}
    assert "agent:***@127.0.0.1" in caplog.text
    assert "s3cret" not in caplog.text
    assert "p@ss" not in caplog.text
