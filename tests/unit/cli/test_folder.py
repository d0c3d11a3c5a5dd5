"""The folder of a pool: private, one per pool, removed when its supervisor is gone."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plumage_cli.errors import CliError
from plumage_cli.local.folder import cleanup
from plumage_cli.local.folder import pool_folder as folder
from plumage_cli.local.folder.pool_folder import PoolFolder, base_folder, live_pools, remove_stale, stale_pools


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


def test_files_are_replaced_atomically() -> None:
    pool = PoolFolder.take("chat")
    for size in (1000, 1):
        pool.write("membership.json", {"replicas": list(range(size))})
    assert json.loads((pool.path / "membership.json").read_text()) == {"replicas": [0]}
    assert sorted(path.name for path in pool.path.iterdir()) == ["lock", "membership.json"]
    pool.remove()


def test_a_pool_is_up_once() -> None:
    pool = PoolFolder.take("chat")
    assert live_pools() == ["chat"]
    with pytest.raises(CliError, match="pool chat is already running"):
        PoolFolder.take("chat")
    other = PoolFolder.take("other")
    assert live_pools() == ["chat", "other"]
    pool.remove()
    other.remove()
    assert live_pools() == []


def test_leftovers_of_a_killed_supervisor_are_removed(runtime: Path) -> None:
    leave = """if True:
        import os
        from plumage_cli.local.folder.pool_folder import PoolFolder
        PoolFolder.take("chat").write("old", {})
        os._exit(9)"""
    subprocess.run([sys.executable, "-c", leave], env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, check=False)
    assert stale_pools() == ["chat"]
    assert live_pools() == []
    assert remove_stale() == ["chat"]
    pool = PoolFolder.take("chat")
    assert not (pool.path / "old").exists()
    pool.remove()


def test_file_written_during_the_removal_is_removed_too(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of a killed supervisor end a moment after it, and may write meanwhile."""
    left = PoolFolder.take("chat")
    os.close(left._lock)
    unlink, tries = Path.unlink, []

    def unlink_beside_a_writer(path: Path, **how: Any) -> None:
        unlink(path, **how)
        if path.name == "lock":
            tries.append(path)
            if len(tries) < 3:
                (left.path / "last words").touch()

    monkeypatch.setattr(Path, "unlink", unlink_beside_a_writer)
    monkeypatch.setattr(sys, "argv", ["cleanup", str(left.path)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(cleanup, "_PAUSE", 0.0)
    cleanup.main()
    assert len(tries) == 3
    assert not left.path.exists()


def test_lock_that_outlives_the_pipe_of_its_owner_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel closes the files of a killed supervisor one after the other, in any order."""
    pool = PoolFolder.take("chat")

    def let_go(seconds: float) -> None:
        os.close(pool._lock)

    monkeypatch.setattr(sys, "argv", ["cleanup", str(pool.path)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(cleanup.time, "sleep", let_go)
    cleanup.main()
    assert not pool.path.exists()


def test_folder_open_to_others_is_refused(runtime: Path) -> None:
    (runtime / "plumage").mkdir(mode=0o755)
    with pytest.raises(CliError, match="exists, but other users can access it"):
        base_folder()


def test_full_disk_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MIN_FREE_BYTES", 2**60)
    with pytest.raises(CliError, match=r"MiB free at .*free some, or set XDG_RUNTIME_DIR"):
        PoolFolder.take("chat")
    assert live_pools() == stale_pools() == []


def test_path_too_long_for_sockets_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = runtime / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(CliError, match="too long a path for Unix sockets"):
        PoolFolder.take("chat")


@pytest.mark.parametrize("name", ["mkdir", "open"])
def test_full_disk_for_the_folder_or_its_lock(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    base_folder()

    def full(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(os, name, full)
    with pytest.raises(CliError, match=r"plumage/chat.*: No space left on device; free some space there"):
        PoolFolder.take("chat")


def test_full_disk_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PoolFolder.take("chat")
    pool.write("membership.json", {"replicas": [1]})

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CliError, match=r"chat/membership\.json: No space left on device; free some space there"):
        pool.write("membership.json", {"replicas": []})
    assert json.loads((pool.path / "membership.json").read_text()) == {"replicas": [1]}
    pool.remove()


def test_path_that_is_no_folder_is_not_used(runtime: Path) -> None:
    (base_folder() / "chat").write_text("")
    with pytest.raises(CliError, match="plumage/chat: File exists; another file or folder is there: move it elsewhere"):
        PoolFolder.take("chat")
    (base_folder() / "chat").unlink()
    (base_folder() / "chat").symlink_to(runtime)
    with pytest.raises(CliError, match="is a symbolic link, but must be the pool's own folder; move it elsewhere"):
        PoolFolder.take("chat")


@pytest.mark.parametrize("lock", [None, "empty", "other", "folder", "link"])
def test_folder_without_a_lock_of_a_pool_is_kept(tmp_path: Path, lock: str | None) -> None:
    """In XDG_RUNTIME_DIR a user's own folder may be called plumage, for example a clone of the sources."""
    precious = base_folder() / "precious"
    (precious / "deep").mkdir(parents=True)
    (precious / "deep" / "file").write_text("hi")
    match lock:
        case "empty" | "other":
            (precious / "lock").write_text("" if lock == "empty" else "pid 7")
        case "folder":
            (precious / "lock").mkdir()
        case "link":
            pool = PoolFolder.take("chat")
            (precious / "lock").symlink_to(pool.path / "lock")
            pool.remove()
    before = sorted(precious.rglob("*"))
    assert live_pools() == stale_pools() == remove_stale() == []
    PoolFolder.take("chat").remove()
    with pytest.raises(CliError, match="plumage/precious contains files of something else; give the pool another name"):
        PoolFolder.take("precious")
    assert sorted(precious.rglob("*")) == before
    assert (precious / "deep" / "file").read_text() == "hi"


def test_empty_folder_is_used() -> None:
    """A supervisor that is killed between making the folder and marking its lock leaves one."""
    (base_folder() / "chat").mkdir(mode=0o700)
    (base_folder() / "chat" / "lock").touch(mode=0o600)
    assert live_pools() == stale_pools() == remove_stale() == []
    pool = PoolFolder.take("chat")
    assert live_pools() == ["chat"]
    pool.remove()


def test_folder_that_cannot_be_removed_is_still_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PoolFolder.take("chat")
    pool.write("fleet.token", "secret")
    monkeypatch.setattr(Path, "rmdir", lambda path: (path / "last words").touch() or os.rmdir(path))
    pool.remove()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(pool.path.parents[1]))
    assert stale_pools() == ["chat"]
    assert sorted(path.name for path in pool.path.iterdir()) == ["last words", "lock"]
    assert remove_stale() == ["chat"]
    assert not pool.path.exists()


def test_folder_taken_during_its_removal_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    old, taken = PoolFolder.take("chat"), []

    def taken_first(path: Path) -> None:
        monkeypatch.undo()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path.parents[1]))
        taken.append(PoolFolder.take("chat"))
        path.rmdir()

    monkeypatch.setattr(Path, "rmdir", taken_first)
    old.remove()
    assert live_pools() == ["chat"]
    assert remove_stale() == []
    taken[0].remove()
    assert live_pools() == stale_pools() == []
