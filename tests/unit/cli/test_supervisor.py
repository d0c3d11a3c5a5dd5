"""What the supervisor of a pool gives to its processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plumage.models import resolve
from plumage_cli.files import read_pool
from plumage_cli.local import supervisor
from plumage_cli.local.folder import PoolFolder
from plumage_cli.local.plan import Site
from plumage_cli.local.ports import free_ports

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
