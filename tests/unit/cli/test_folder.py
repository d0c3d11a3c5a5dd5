"""The folder of a pool: private, one per pool, swept when its supervisor is gone."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plumage_cli.errors import CliError
from plumage_cli.local import folder, sweeper
from plumage_cli.local.folder import PoolFolder, base_folder, live_pools, stale_pools, sweep


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_and_files_are_private() -> None:
    pool = PoolFolder.take("chat")
    secret = pool.secret("fleet.token")
    assert mode(base_folder()) == mode(pool.path) == 0o700
    assert mode(secret) == 0o600
    assert len(secret.read_text().strip()) >= 32
    pool.remove()
    assert not pool.path.exists()


def test_files_are_replaced_whole() -> None:
    pool = PoolFolder.take("chat")
    for size in (1000, 1):
        pool.write("membership.json", {"replicas": list(range(size))})
    assert json.loads((pool.path / "membership.json").read_text()) == {"replicas": [0]}
    assert sorted(path.name for path in pool.path.iterdir()) == ["lock", "membership.json"]
    pool.remove()


def test_a_pool_is_up_once() -> None:
    pool = PoolFolder.take("chat")
    assert live_pools() == ["chat"]
    with pytest.raises(CliError, match="pool chat is up already"):
        PoolFolder.take("chat")
    other = PoolFolder.take("other")
    assert live_pools() == ["chat", "other"]
    pool.remove()
    other.remove()
    assert live_pools() == []


def test_what_a_killed_supervisor_left_is_swept(runtime: Path) -> None:
    leave = """if True:
        import os
        from plumage_cli.local.folder import PoolFolder
        PoolFolder.take("chat").write("old", {})
        os._exit(9)"""
    subprocess.run([sys.executable, "-c", leave], env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, check=False)
    assert stale_pools() == ["chat"]
    assert live_pools() == []
    assert sweep() == ["chat"]
    pool = PoolFolder.take("chat")
    assert not (pool.path / "old").exists()
    pool.remove()


def test_a_last_file_written_while_it_is_swept_is_swept_too(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of a killed supervisor end a moment after it, and may write meanwhile."""
    left = base_folder() / "chat"
    left.mkdir()
    remove, removed = shutil.rmtree, []

    def remove_beside_a_writer(path: Path, **how: Any) -> None:
        remove(path, **how)
        removed.append(path)
        if len(removed) < 3:
            path.mkdir()
            (path / "last words").touch()

    monkeypatch.setattr(shutil, "rmtree", remove_beside_a_writer)
    monkeypatch.setattr(sys, "argv", ["sweeper", str(left)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sweeper, "_PAUSE", 0.0)
    sweeper.main()
    assert removed == [left] * 3
    assert not left.exists()


def test_a_lock_that_outlives_its_holders_pipe_by_a_moment_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel closes what a killed supervisor had open one after the other, in an order of its own."""
    pool = PoolFolder.take("chat")

    def let_go(seconds: float) -> None:
        os.close(pool._lock)

    monkeypatch.setattr(sys, "argv", ["sweeper", str(pool.path)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sweeper.time, "sleep", let_go)
    sweeper.main()
    assert not pool.path.exists()


def test_a_folder_that_others_can_enter_is_refused(runtime: Path) -> None:
    (runtime / "plumage").mkdir(mode=0o755)
    with pytest.raises(CliError, match="not a folder of yours alone"):
        base_folder()


def test_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MIN_FREE_BYTES", 2**60)
    with pytest.raises(CliError, match=r"MiB free at .*free some, or set XDG_RUNTIME_DIR"):
        PoolFolder.take("chat")
    assert live_pools() == stale_pools() == []


def test_a_path_too_long_for_sockets_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = runtime / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(CliError, match="too long a path for Unix sockets"):
        PoolFolder.take("chat")
