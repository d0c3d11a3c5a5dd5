"""What the supervisor of a pool gives to its processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plumage.membership import MemberState
from plumage.models import resolve
from plumage_cli.errors import CliError
from plumage_cli.files import read_pool
from plumage_cli.local import supervisor
from plumage_cli.local.child import ChildState
from plumage_cli.local.folder import PoolFolder
from plumage_cli.local.plan import Site
from plumage_cli.local.ports import free_ports
from plumage_cli.local.replica import Replica

MANIFEST = Path(__file__).parents[3] / "examples" / "minimal.yaml"


class First:
    """Randomness that always begins at the first port."""

    def randrange(self, _: int) -> int:
        return 0


async def test_no_engine_gets_the_port_that_the_router_will_listen_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.random, "SystemRandom", First)
    path = tmp_path / "pool"
    path.mkdir()
    routers, *_ = free_ports(1, (), start=0)
    folder = PoolFolder(path, os.open(path / "lock", os.O_CREAT | os.O_RDWR))
    pool = supervisor.Supervisor(read_pool(MANIFEST), folder, port=routers)
    replica = pool._replica(Site(path, resolve("builtin://tiny-chat"), "unix:///none"), 0)
    assert routers not in (replica.plan.engine.settings["port"], replica.plan.agent.settings["listen"]["port"])
    await pool.stop()
    assert not path.exists()


async def test_nobody_is_let_go_while_a_replica_warms(tmp_path: Path) -> None:
    (path := tmp_path / "pool").mkdir()
    folder = PoolFolder(path, os.open(path / "lock", os.O_CREAT | os.O_RDWR))
    pool = supervisor.Supervisor(read_pool(MANIFEST), folder, port=free_ports(1, (), start=0)[0])
    site, gone = Site(path, resolve("builtin://tiny-chat"), "unix:///none"), []

    async def remove(replica: Replica) -> None:
        gone.append(replica.plan.id)

    pool._remove = remove  # type: ignore[method-assign]
    replicas = [pool._replica(site, number) for number in range(3)]
    pool.replicas = {replica.plan.id: replica for replica in replicas}
    for replica in replicas:
        replica.state, replica.engine.state = MemberState.READY, ChildState.RUNNING
    last = replicas[2]
    last.state = MemberState.WARMING
    with pytest.raises(CliError, match=f"{last.plan.id} still warms: scale down once all replicas are Ready"):
        await pool.scale(2)
    assert gone == []
    await pool.scale(3)
    last.engine.state = ChildState.WAITING
    await pool.scale(2)
    assert gone == [last.plan.id], "an engine that crashes again and again may go"
    pool.replicas.clear()
    await pool.stop()
