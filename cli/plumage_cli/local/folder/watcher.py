"""Restores files and sockets that were deleted from the folder of a running pool.

A Unix socket whose path is deleted still serves its connections, but accepts no new ones. Only another hard
link to its inode can restore the path without a restart, so each socket has one in a subfolder. Where both links are
gone, the owner opens the socket again if it can do so without losing requests. Otherwise the view reports it as
missing.

Cleaners such as systemd-tmpfiles(8) skip the folder. It is locked, and its access times are never six hours old, as the
XDG base directory specification asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from plumage.directory.client.tasks import UnexpectedErrors
from plumage_cli.errors import CliError
from plumage_cli.local.folder.pool_folder import PoolFolder

__all__ = ["FolderWatcher", "WatchedSocket"]

_INTERVAL = 1.0  # seconds between two checks
_TOUCH = 3600.0  # seconds between two updates of the access times
_LINKS = ".sockets"  # the subfolder of the second links

Report = Callable[[str], None]


@dataclass(slots=True)
class WatchedSocket:
    """One socket of the folder.

    owner: the pid of the process that binds it, None while none runs. effect: what does not work without the socket,
    for the view. reopen: opens it again without losing requests, or raises CliError; None where that is impossible.
    """

    path: Path
    owner: Callable[[], int | None]
    effect: str
    reopen: Callable[[], Awaitable[None]] | None = None
    _inode: int | None = field(default=None, init=False)
    _pid: int | None = field(default=None, init=False)
    missing: bool = field(default=False, init=False)

    @property
    def link(self) -> Path:
        """The second link."""
        return self.path.parent / _LINKS / self.path.name

    def check(self) -> str | None:
        """Link a new socket and restore a deleted path. What was restored, as a message; sets `missing` on failure."""
        pid = self.owner()
        if pid is None:
            self._inode, self.missing = None, False
            return None
        inode = _socket_at(self.path)
        if inode is not None:
            if (inode, pid) != (self._inode, self._pid) or _socket_at(self.link) != inode:
                self._make_link()
            self._inode, self._pid, self.missing = inode, pid, False
            return None
        if self._inode is None or pid != self._pid:
            return None  # its process has not opened it yet
        if _socket_at(self.link) == self._inode:
            with contextlib.suppress(OSError):
                os.link(self.link, self.path)
                return f"{self.path.name} was deleted and is restored"
        self.missing = True
        return None

    def _make_link(self) -> None:
        with contextlib.suppress(OSError):
            self.link.parent.mkdir(mode=0o700, exist_ok=True)
            self.link.unlink(missing_ok=True)
            os.link(self.path, self.link)


def _socket_at(path: Path) -> int | None:
    """The inode of the socket there; None for anything else."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


class FolderWatcher:
    """Checks the folder once a second.

    sockets: the sockets it should have now. report: gets one line for everything that was restored or can't be. `also`
    is called at each check.
    """

    def __init__(self, folder: PoolFolder, sockets: Callable[[], list[WatchedSocket]], report: Report) -> None:
        self.also: Callable[[], None] = lambda: None
        self._folder = folder
        self._sockets = sockets
        self._report = report
        self._mistakes = UnexpectedErrors("watching the pool's folder", foreseen=())
        self._reported: set[str] = set()
        self._touched = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    @property
    def missing_sockets(self) -> list[str]:
        """One message for each socket that is missing."""
        return [f"{one.path.name} is gone: {one.effect}" for one in self._sockets() if one.missing]

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="watch folder")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self._check_and_touch()
            except Exception as error:  # the pool keeps running, also when `report` fails because the terminal is gone
                self._mistakes.log_once(error)

    async def _check_and_touch(self) -> None:
        try:
            await self.check()
            if time.monotonic() - self._touched > _TOUCH:
                self._touched = time.monotonic()
                self._folder.touch()
        except (CliError, OSError) as error:
            self._report_once(str(error))

    async def check(self) -> None:
        """Restore what is missing."""
        self.also()
        for name in self._folder.restore():
            self._report(f"{name} was deleted and is restored")
        for one in self._sockets():
            if (restored := one.check()) is not None:
                self._report(restored)
            if one.missing and one.reopen is not None:
                await self._reopen(one, one.reopen)
            elif one.missing:
                self._report_once(f"{one.path.name} is gone: {one.effect}")

    async def _reopen(self, socket: WatchedSocket, reopen: Callable[[], Awaitable[None]]) -> None:
        name = socket.path.name
        try:
            await reopen()
        except CliError as error:
            self._report_once(f"{name} was deleted and can't be opened again: {error}")
        else:
            self._report(f"{name} was deleted and is opened again")

    def _report_once(self, message: str) -> None:
        if message not in self._reported and len(self._reported) < 1000:
            self._reported.add(message)
            self._report(message)
