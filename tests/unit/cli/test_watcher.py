"""Removed files and sockets of a running pool are restored: files with their content, sockets with the same owner."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.conditions import until

from plumage_cli.errors import CliError
from plumage_cli.local.folder import watcher as watcher_module
from plumage_cli.local.folder.pool_folder import PoolFolder, live_pools
from plumage_cli.local.folder.watcher import FolderWatcher, WatchedSocket


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolFolder]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    taken = PoolFolder.take("chat")
    yield taken
    taken.remove()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bound(stack: ExitStack, path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    made = stack.enter_context(socket.socket(socket.AF_UNIX))
    made.bind(str(path))
    made.listen()
    return made


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(path))
        except OSError:
            return False
    return True


async def test_removed_file_is_written_again(folder: PoolFolder) -> None:
    lines: list[str] = []
    watcher = FolderWatcher(folder, list, lines.append)
    folder.write("router.json", {"pool": "chat"})
    key = folder.secret("engine-key").read_text()
    folder.write("engine-chat-1.json", {})
    folder.forget("engine-chat-1.json")
    for path in folder.path.glob("*-key"):
        path.unlink()
    (folder.path / "router.json").unlink()
    await watcher.check()
    assert (folder.path / "router.json").read_text() == '{\n "pool": "chat"\n}'
    assert (folder.path / "engine-key").read_text() == key, "the key that engines use"
    assert not (folder.path / "engine-chat-1.json").exists()
    assert lines == [f"{name} was deleted and is restored" for name in ("router.json", "engine-key")]
    await watcher.check()
    assert len(lines) == 2


async def test_whole_folder_is_restored_with_its_lock(folder: PoolFolder) -> None:
    folder.write("router.json", "{}")
    shutil.rmtree(folder.path)
    assert live_pools() == []
    assert folder.restore() == ["router.json"]
    assert live_pools() == ["chat"], "nobody removes it or takes it over"
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(CliError, match="is already running"):
        PoolFolder.take("chat")


async def test_folder_of_another_owner_is_left_alone(folder: PoolFolder) -> None:
    shutil.rmtree(folder.path)
    other = PoolFolder.take("chat")
    with pytest.raises(CliError, match="another pool has it now"):
        folder.restore()
    other.remove()


async def test_socket_gets_its_path_back(folder: PoolFolder, stack: ExitStack) -> None:
    """It is the same socket: connections stay open, and nothing restarts."""
    path, lines = folder.path / "events-0", []
    bound(stack, path)
    watched = WatchedSocket(path, os.getpid, "an agent that starts")
    watcher = FolderWatcher(folder, lambda: [watched], lines.append)
    await watcher.check()
    path.unlink()
    assert not answers(path)
    await watcher.check()
    assert answers(path)
    assert (lines, watcher.missing_sockets) == (["events-0 was deleted and is restored"], [])


async def test_socket_of_a_new_owner_is_kept_in_its_place(folder: PoolFolder, stack: ExitStack) -> None:
    path, pid = folder.path / "events-0", 1
    old = bound(stack, path)
    watched = WatchedSocket(path, lambda: pid, "an agent that starts")
    watcher = FolderWatcher(folder, lambda: [watched], lambda _: None)
    await watcher.check()
    old.close()
    path.unlink()
    pid = 2
    await watcher.check()
    assert not path.exists(), "the path of the old owner has no listener"
    assert watcher.missing_sockets == []
    bound(stack, path)
    await watcher.check()
    path.unlink()
    await watcher.check()
    assert answers(path)


async def test_socket_without_any_path_is_recreated_or_reported(folder: PoolFolder, stack: ExitStack) -> None:
    lines: list[str] = []
    paths = [folder.path / name for name in ("control.sock", "events-0")]
    for path in paths:
        bound(stack, path)

    async def recreate() -> None:
        bound(stack, paths[0])

    sockets = [
        WatchedSocket(paths[0], os.getpid, "other commands", recreate),
        WatchedSocket(paths[1], os.getpid, "an agent that starts learns nothing"),
    ]
    watcher = FolderWatcher(folder, lambda: sockets, lines.append)
    await watcher.check()
    shutil.rmtree(folder.path / ".sockets")
    for path in paths:
        path.unlink()
    for _ in range(3):
        await watcher.check()
    assert answers(paths[0])
    assert watcher.missing_sockets == ["events-0 is gone: an agent that starts learns nothing"]
    assert sorted(lines) == ["control.sock was deleted and is opened again", *watcher.missing_sockets]


async def test_socket_that_cannot_be_opened_again_is_reported_as_missing(folder: PoolFolder, stack: ExitStack) -> None:
    lines: list[str] = []
    path, tries = folder.path / "redis.sock", 0
    bound(stack, path)

    async def fail() -> None:
        nonlocal tries
        tries += 1
        raise CliError("no memory")

    watcher = FolderWatcher(folder, lambda: [watched], lines.append)
    watched = WatchedSocket(path, os.getpid, "agents that start can't reach the directory", fail)
    await watcher.check()
    shutil.rmtree(folder.path / ".sockets")
    path.unlink()
    for _ in range(3):
        await watcher.check()
    assert tries == 3
    assert lines == ["redis.sock was deleted and can't be opened again: no memory"]
    assert watcher.missing_sockets == ["redis.sock is gone: agents that start can't reach the directory"]


async def test_watcher_keeps_restoring_files_when_reports_fail(
    folder: PoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "_INTERVAL", 0.001)
    reports: list[str] = []

    def report(line: str) -> None:
        reports.append(line)
        raise OSError("the terminal is gone")

    file = folder.write("router.json", "{}")
    watcher = FolderWatcher(folder, list, report)
    watcher.start()
    for _ in range(2):
        reports.clear()
        file.unlink()
        await until(file.exists)
        await until(lambda: reports)
    await watcher.stop()


def test_temporary_file_cleaners_skip_the_folder(folder: PoolFolder) -> None:
    """By systemd-tmpfiles(8): it skips what it cannot lock, and uses the latest of three times."""
    file = folder.write("router.json", "{}")
    long_ago = time.time() - 20 * 86_400
    os.utime(file, (long_ago, long_ago))
    folder.touch()
    seen = file.stat()
    assert time.time() - seen.st_atime < 3600
    assert abs(seen.st_mtime - long_ago) < 1, "a router would read it again"
    descriptor = os.open(folder.path, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
