"""What the supervisor of a pool gives to its processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.conditions import until

from plumage.membership import MemberState
from plumage.models import resolve
from plumage_cli.errors import CliError
from plumage_cli.local.folder.pool_folder import PoolFolder
from plumage_cli.local.plan.paths import LocalPaths
from plumage_cli.local.pool import membership_file as membership
from plumage_cli.local.pool import supervisor
from plumage_cli.local.pool.replica import Replica
from plumage_cli.local.processes.child import ChildState
from plumage_cli.local.processes.ports import free_ports
from plumage_cli.manifests import read_pool

MANIFEST = Path(__file__).parents[3] / "examples" / "minimal.yaml"


class First:
    """A random generator that always starts at the first port."""

    def randrange(self, _: int) -> int:
        return 0


async def test_no_engine_gets_the_port_of_the_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.random, "SystemRandom", First)
    path = tmp_path / "pool"
    path.mkdir()
    routers, *_ = free_ports(1, (), start=0)
    folder = PoolFolder(path, os.open(path / "lock", os.O_CREAT | os.O_RDWR))
    pool = supervisor.Supervisor(read_pool(MANIFEST), folder, port=routers)
    replica = pool._replica(LocalPaths(path, resolve("builtin://tiny-chat"), "unix:///none"), 0)
    assert routers not in (replica.plan.engine.port, replica.plan.agent.port)
    await pool.stop()
    assert not path.exists()


async def test_no_replica_is_removed_while_one_warms(tmp_path: Path) -> None:
    (path := tmp_path / "pool").mkdir()
    folder = PoolFolder(path, os.open(path / "lock", os.O_CREAT | os.O_RDWR))
    pool = supervisor.Supervisor(read_pool(MANIFEST), folder, port=free_ports(1, (), start=0)[0])
    paths, gone = LocalPaths(path, resolve("builtin://tiny-chat"), "unix:///none"), []

    async def remove(replica: Replica) -> None:
        gone.append(replica.plan.id)

    pool._remove = remove  # type: ignore[method-assign]
    replicas = [pool._replica(paths, number) for number in range(3)]
    pool.replicas = {replica.plan.id: replica for replica in replicas}
    for replica in replicas:
        replica.state, replica.engine.state = MemberState.READY, ChildState.RUNNING
    last = replicas[2]
    last.state = MemberState.WARMING
    with pytest.raises(CliError, match=f"{last.plan.id} still warms up: scale down once all replicas are Ready"):
        await pool.scale(2)
    assert gone == []
    await pool.scale(3)
    last.engine.state = ChildState.WAITING
    await pool.scale(2)
    assert gone == [last.plan.id], "a crashing engine may be removed"
    pool.replicas.clear()
    await pool.stop()


async def test_missing_socket_names_the_engine_that_runs_now(tmp_path: Path) -> None:
    (path := tmp_path / "pool").mkdir()
    folder = PoolFolder(path, os.open(path / "lock", os.O_CREAT | os.O_RDWR))
    pool = supervisor.Supervisor(read_pool(MANIFEST), folder, port=free_ports(1, (), start=0)[0])
    replica = pool._replica(LocalPaths(path, resolve("builtin://tiny-chat"), "unix:///none"), 0)
    pool.replicas = {replica.plan.id: replica}
    before = pool._current_sockets()
    engine = await asyncio.create_subprocess_exec("sleep", "60")
    replica.engine._process = engine
    after = pool._current_sockets()
    assert [*map(id, after)] == [*map(id, before)], "each keeps what it knows of its socket"
    assert all(f"(pid {engine.pid})" in one.effect for one in after)
    engine.kill()
    await engine.wait()
    await pool.stop()


class FullFolder(PoolFolder):
    """A pool's folder on a disk that is full while `full`."""

    full = False

    def write(self, name: str, content: Mapping[str, Any] | str) -> Path:
        if self.full and name == "membership.json":
            raise CliError("can't write membership.json: No space left on device")
        return super().write(name, content)


@pytest.fixture
def folder(tmp_path: Path) -> FullFolder:
    (path := tmp_path / "pool").mkdir()
    return FullFolder(path, os.open(path / "lock", os.O_CREAT | os.O_RDWR))


@pytest.fixture
def printed() -> list[str]:
    return []


@pytest.fixture
async def pool(
    folder: FullFolder, printed: list[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[supervisor.Supervisor]:
    """A pool of three Ready replicas without processes, whose writes are retried at once."""
    monkeypatch.setattr(membership, "_RETRY", 0.001)
    monkeypatch.setattr(supervisor, "_READ_SECONDS", 0.0)
    pool = supervisor.Supervisor(read_pool(MANIFEST), folder, port=free_ports(1, (), start=0)[0], report=printed.append)
    paths = LocalPaths(folder.path, resolve("builtin://tiny-chat"), "unix:///none")
    for number in range(3):
        replica = pool._replica(paths, number)
        replica.state, replica.engine.state = MemberState.READY, ChildState.RUNNING
        pool.replicas[replica.plan.id] = replica
    pool._members.write()
    pool._members.start()
    yield pool
    pool.replicas.clear()
    await pool.stop()


def states(pool: supervisor.Supervisor) -> dict[str, str]:
    """The state of each replica, as a router reads it."""
    content = json.loads((pool.folder.path / "membership.json").read_text())
    return {replica["id"]: replica["state"] for replica in content["replicas"]}


async def test_failed_write_of_the_membership_file_is_retried(
    pool: supervisor.Supervisor, folder: FullFolder, printed: list[str]
) -> None:
    folder.full = True
    replica = pool.replicas["chat-0"]
    replica.set_state(MemberState.WARMING)
    await asyncio.sleep(0.05)
    assert states(pool)["chat-0"] == "Ready"
    folder.full = False
    await until(lambda: states(pool)["chat-0"] == "Warming")
    assert printed == [
        "can't write membership.json: No space left on device; trying again each second",
        "membership.json is up to date again",
    ]


async def test_error_in_the_membership_task_is_logged_and_the_file_written_later(
    pool: supervisor.Supervisor, printed: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []

    def fails(*_: Any) -> dict[str, Any]:
        tries.append("once more")
        raise KeyError("replicas")

    with monkeypatch.context() as broken:
        broken.setattr(pool._members, "_pack", fails)
        pool.replicas["chat-0"].set_state(MemberState.WARMING)
        await until(lambda: len(tries) > 3)
        assert states(pool)["chat-0"] == "Ready"
        assert not await pool._members.is_current_within(0.0)
    await until(lambda: states(pool)["chat-0"] == "Warming")
    assert await pool._members.is_current_within(0.0)
    assert printed == [
        "can't write membership.json: KeyError('replicas'), an error in plumage; the router keeps the replicas "
        "that it knows. If the error stays, end the pool and start it again; trying again each second",
        "membership.json is up to date again",
    ]
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "writing membership.json: unexpected error; the task continues" in record.getMessage()
    assert record.exc_info
    assert isinstance(record.exc_info[1], KeyError)


async def test_membership_file_is_written_even_if_the_log_fails(
    folder: FullFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership, "_RETRY", 0.001)
    heard: list[str] = []

    def report(text: str) -> None:
        heard.append(text)
        if len(heard) > 1:
            raise BrokenPipeError("the terminal is gone")

    state = {"pool": "chat", "replicas": [1]}
    members = membership.MembershipFile(folder, lambda: state, report)
    members.start()
    for number in (2, 3):
        folder.full = True
        with contextlib.suppress(BrokenPipeError):
            members.write()
        state = {"pool": "chat", "replicas": [number]}
        folder.full = False
        await until(lambda: members.error is None)
        assert json.loads((folder.path / "membership.json").read_text()) == state
    await members.stop()
    assert len(heard) == 4
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_no_replica_drains_before_the_router_can_know(
    pool: supervisor.Supervisor, folder: FullFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[dict[str, str]] = []

    async def drain(*_: Any) -> bool:
        drained.append(states(pool))
        return True

    monkeypatch.setattr(Replica, "drain", drain)
    folder.full = True
    scaling = asyncio.create_task(pool.scale(2))
    await until(lambda: pool.replicas["chat-2"].state is MemberState.DRAINING)
    await asyncio.sleep(0.05)
    assert drained == []
    folder.full = False
    await scaling
    assert drained == [{"chat-0": "Ready", "chat-1": "Ready", "chat-2": "Draining"}]
    assert states(pool) == {"chat-0": "Ready", "chat-1": "Ready"}


async def test_failed_membership_write_keeps_all_replicas(
    pool: supervisor.Supervisor, folder: FullFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_WRITE_SECONDS", 0.05)
    folder.full = True
    with pytest.raises(
        CliError, match=r"no replica was deleted, since the router would not learn of it: .*No space left"
    ):
        await pool.scale(1)
    assert [replica.state for replica in pool.replicas.values()] == [MemberState.READY] * 3
    folder.full = False
    await until(lambda: pool._members.error is None)
    assert set(states(pool).values()) == {"Ready"}
    assert len(states(pool)) == 3
