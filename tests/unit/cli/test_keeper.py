"""What is removed under a live pool is put back: files with their content, sockets with the same owner behind them."""

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

from plumage_cli.errors import CliError
from plumage_cli.local.folder import PoolFolder, live_pools
from plumage_cli.local.keeper import Keeper, KeptSocket


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


async def test_files_are_written_again(folder: PoolFolder) -> None:
    said: list[str] = []
    keeper = Keeper(folder, list, said.append)
    folder.write("router.json", {"pool": "chat"})
    key = folder.secret("engine-key").read_text()
    folder.write("engine-chat-1.json", {})
    folder.forget("engine-chat-1.json")
    for path in folder.path.glob("*-key"):
        path.unlink()
    (folder.path / "router.json").unlink()
    await keeper.look()
    assert (folder.path / "router.json").read_text() == '{\n "pool": "chat"\n}'
    assert (folder.path / "engine-key").read_text() == key, "the one that engines have"
    assert not (folder.path / "engine-chat-1.json").exists()
    assert said == [f"{name} was removed and is written again" for name in ("router.json", "engine-key")]
    await keeper.look()
    assert len(said) == 2


async def test_the_whole_folder_is_made_again_with_its_lock(folder: PoolFolder) -> None:
    folder.write("router.json", "{}")
    shutil.rmtree(folder.path)
    assert live_pools() == []
    assert folder.restore() == ["router.json"]
    assert live_pools() == ["chat"], "nobody sweeps it, nor takes it"
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(CliError, match="is up already"):
        PoolFolder.take("chat")


async def test_a_folder_that_is_anothers_now_is_left(folder: PoolFolder) -> None:
    shutil.rmtree(folder.path)
    other = PoolFolder.take("chat")
    with pytest.raises(CliError, match="another pool's now"):
        folder.restore()
    other.remove()


async def test_a_socket_gets_its_path_back(folder: PoolFolder, stack: ExitStack) -> None:
    """The very same one: what is connected stays so, and nothing is started again."""
    path, said = folder.path / "events-0", []
    bound(stack, path)
    kept = KeptSocket(path, os.getpid, "an agent that starts")
    keeper = Keeper(folder, lambda: [kept], said.append)
    await keeper.look()
    path.unlink()
    assert not answers(path)
    await keeper.look()
    assert answers(path)
    assert (said, keeper.troubles) == (["events-0 was removed and has its path back"], [])


async def test_a_socket_of_a_new_owner_is_kept_in_its_place(folder: PoolFolder, stack: ExitStack) -> None:
    path, pid = folder.path / "events-0", 1
    old = bound(stack, path)
    kept = KeptSocket(path, lambda: pid, "an agent that starts")
    keeper = Keeper(folder, lambda: [kept], lambda _: None)
    await keeper.look()
    old.close()
    path.unlink()
    pid = 2
    await keeper.look()
    assert not path.exists(), "the old owner's leads nowhere"
    assert keeper.troubles == []
    bound(stack, path)
    await keeper.look()
    path.unlink()
    await keeper.look()
    assert answers(path)


async def test_a_socket_without_any_path_is_made_anew_or_told(folder: PoolFolder, stack: ExitStack) -> None:
    said: list[str] = []
    paths = [folder.path / name for name in ("control.sock", "events-0")]
    for path in paths:
        bound(stack, path)

    async def anew() -> None:
        bound(stack, paths[0])

    sockets = [
        KeptSocket(paths[0], os.getpid, "other commands", anew),
        KeptSocket(paths[1], os.getpid, "an agent that starts learns nothing"),
    ]
    keeper = Keeper(folder, lambda: sockets, said.append)
    await keeper.look()
    shutil.rmtree(folder.path / ".sockets")
    for path in paths:
        path.unlink()
    for _ in range(3):
        await keeper.look()
    assert answers(paths[0])
    assert keeper.troubles == ["events-0 is gone: an agent that starts learns nothing"]
    assert sorted(said) == ["control.sock was removed and is made anew", *keeper.troubles]


def test_cleaners_keep_out(folder: PoolFolder) -> None:
    """By systemd-tmpfiles(8): it skips what it can't lock, and goes by the latest of three times."""
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
