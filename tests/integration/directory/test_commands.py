"""Every command to a server is valid in Redis 6.2, with every option. The servers of the tests are newer."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.directories import ACL, cluster_of_three, cluster_url
from support.redis62 import Recorder, refused

from plumage.directory.client.connection import connect
from plumage.directory.mirror.mirror import Mirror
from plumage.directory.mirror.sync import DirectorySync
from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Change, PoolKeys
from plumage.directory.server.local_server import SOCKET, LocalServer
from plumage.directory.sharing.hotness_share import HotnessShare
from plumage.directory.sharing.shared_hash import MOST, SharedHash
from plumage.directory.sharing.work_share import WorkShare

pytestmark = pytest.mark.redis


@pytest.fixture(params=["server", "cluster"])
def place(request: pytest.FixtureRequest, binary: Path, tmp_path: Path) -> Any:
    """A URL, and the sockets of its servers."""
    with ExitStack() as stack:
        if request.param == "server":
            server = stack.enter_context(LocalServer(binary=binary))
            yield server.url, [server.socket]
        else:
            ports = stack.enter_context(cluster_of_three(binary, tmp_path))
            yield cluster_url(ports), [tmp_path / str(port) / SOCKET for port in ports]


async def test_every_command_exists_in_redis_6_2(place: Any, until: Any) -> None:
    url, sockets = place
    with ExitStack() as stack:
        recorders = [stack.enter_context(Recorder(path)) for path in sockets]
        await use_everything(url, until)
        await until(lambda: any("UNLINK" in names_of(recorder) for recorder in recorders))
    sent = [command for recorder in recorders for command in recorder.sent]
    assert {wrong for command in sent if (wrong := refused(command))} == set()
    words = {word.removeprefix("+").partition("|")[0].upper() for word in ACL.split() if word.startswith("+")}
    assert words - {"@ALL", "PING"} <= set.union(*map(names_of, recorders)), "all that the product sends was sent"


def names_of(recorder: Recorder) -> set[str]:
    return {command[0].decode().upper() for command in recorder.sent}


async def use_everything(url: str, until: Any) -> None:
    """A writer whose log is trimmed, an engine with a reset cache, a reader; routers' shared work, expiring offers, and
    hotness."""
    rng, mirror = random.Random(1), Mirror()
    writer = DirectoryWriter(url, pool="p", replica="r0", heartbeat_seconds=0.1, rng=rng)
    sync = DirectorySync(url, pool="p", mirror=mirror, poll_seconds=0.1, rng=rng)
    sync.set_replicas({"r0": 0})
    async with writer, sync:
        await until(lambda: sync.view("r0").cache_known)
        for _ in range(60):
            writer.publish([Change(rng.getrandbits(64)) for _ in range(500)])
            await asyncio.sleep(0.01)
        await until(lambda: sync.view("r0").chunks == writer.held.count and not writer.behind)
        for _ in range(10):  # a new reader continues in the log where the log is ahead of the snapshot
            writer.publish([Change(rng.getrandbits(64)) for _ in range(500)])
            async with DirectorySync(url, pool="p", mirror=Mirror(), rng=rng) as cold:
                cold.set_replicas({"r0": 0})
                await until(lambda cold=cold: cold.view("r0").cache_known)
        writer.clear()
        writer.publish([Change(7)])
        await until(lambda: mirror.match([7]))
    await share_work(url, until)
    await share_hotness(url, until)


async def share_work(url: str, until: Any) -> None:
    one, two = (
        WorkShare(url, pool="p", router=name, mirror=Mirror(), work=lambda: {0: 1.0}, policies=tuple) for name in "ab"
    )
    for share in (one, two):
        share.set_replicas({"r0": 0})
        share.start()
    await until(lambda: one.foreign() and two.foreign())
    for share in (one, two):
        await share.close()
    client, now = connect(url), 1e6
    for number in range(MOST + 2):
        offers = SharedHash(client, PoolKeys("p").estimators, f"router-{number}", lifetime=100, clock=lambda: now)
        offers.mine = b"learned"
        await offers.exchange()
    await client.aclose()


async def share_hotness(url: str, until: Any) -> None:
    async def following() -> HotnessShare:
        share = HotnessShare(url, pool="p", period=0.05)
        share.start()
        return share

    one = await following()
    one.use(7, 64)
    await until(lambda: len(one.view) == 1)
    assert await one.store_view()
    late = await following()
    await until(lambda: len(late.view) == 1)
    for share in (one, late):
        await share.close()


@pytest.mark.parametrize(
    "command",
    [
        "EXPIRE plumage:v1:{p}:work 60 NX",
        "XADD plumage:v1:{p}:work MAXLEN ~ 9 KEEPREF * v 1",
        "XTRIM plumage:v1:{p}:work MAXLEN ~ 9 ACKED",
        "HEXPIRE plumage:v1:{p}:work 10 FIELDS 1 a",
        "HSETEX plumage:v1:{p}:work FIELDS 1 a b",
        "SET plumage:v1:{p}:work 1 IFEQ 2",
        "SINTERCARD 2 a b",
        "GET someone:elses",
    ],
)
def test_check_finds_commands_newer_than_6_2(command: str) -> None:
    assert refused([word.encode() for word in command.split()]) == command


def test_check_accepts_commands_of_6_2() -> None:
    for command in (
        "XADD plumage:v1:{p/r}:1.a:log 5-0 v 1 r \x01\x02",
        "XTRIM plumage:v1:{p}:hotness MINID 5-0",
        "SET plumage:v1:{p}:hotness:lock 1 EX 60 NX",
        "XREAD COUNT 5 BLOCK 100 STREAMS plumage:v1:{p}:work plumage:v1:{p}:hotness 5-0 $",
    ):
        assert refused([word.encode() for word in command.split(" ")]) is None
