"""Keeps a live pool's folder whole: files that somebody removes are written again, sockets get their path back.

A Unix socket whose path is removed goes on working for those who are connected, and nobody else finds it. Only another
link to the same inode can give the path back without a restart, so each socket has one in a folder beside it. Where
both are gone, its owner makes it anew if it can do so without losing requests; else the view says what is missing.
The folder is kept out of a cleaner's way as systemd-tmpfiles(8) and the XDG base directory specification say: a lock on
it, and access times that are never six hours old.
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
from plumage_cli.local.folder import PoolFolder

__all__ = ["Keeper", "KeptSocket"]

_LOOK = 1.0  # seconds between two looks
_TOUCH = 3600.0  # seconds between two touches of all that lies there
_SPARE = ".sockets"  # the folder of the second links

Say = Callable[[str], None]


@dataclass(slots=True)
class KeptSocket:
    """owner: the pid of the process that binds it, None while none runs. anew: makes it again without losing requests;
    None where nobody can. what: who can't be reached without it, in the words of the view."""

    path: Path
    owner: Callable[[], int | None]
    what: str
    anew: Callable[[], Awaitable[None]] | None = None
    _inode: int | None = field(default=None, init=False)
    _pid: int | None = field(default=None, init=False)
    missing: bool = field(default=False, init=False)

    @property
    def spare(self) -> Path:
        """The second link."""
        return self.path.parent / _SPARE / self.path.name

    def look(self) -> str | None:
        """Links a new socket, and gives a lost one its path back. What was mended; `missing` where nothing could be."""
        pid = self.owner()
        if pid is None:
            self._inode, self.missing = None, False
            return None
        inode = _socket_at(self.path)
        if inode is not None:
            if (inode, pid) != (self._inode, self._pid) or _socket_at(self.spare) != inode:
                self._link()
            self._inode, self._pid, self.missing = inode, pid, False
            return None
        if self._inode is None or pid != self._pid:
            return None  # it is being started
        if _socket_at(self.spare) == self._inode:
            with contextlib.suppress(OSError):
                os.link(self.spare, self.path)
                return f"{self.path.name} was removed and has its path back"
        self.missing = True
        return None

    def _link(self) -> None:
        with contextlib.suppress(OSError):
            self.spare.parent.mkdir(mode=0o700, exist_ok=True)
            self.spare.unlink(missing_ok=True)
            os.link(self.path, self.spare)


def _socket_at(path: Path) -> int | None:
    """The inode of the socket there; None for anything else."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


class Keeper:
    """sockets: those there are now. `say` gets a line for each thing that was mended, and for what can't be. `also` is
    called at each look, for what else has to stay."""

    def __init__(self, folder: PoolFolder, sockets: Callable[[], list[KeptSocket]], say: Say) -> None:
        self.also: Callable[[], None] = lambda: None
        self._folder = folder
        self._sockets = sockets
        self._say = say
        self._mistakes = UnexpectedErrors("keeping the pool's folder whole", foreseen=())
        self._told: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def troubles(self) -> list[str]:
        """What is missing and was not mended, in a person's words."""
        return [f"{one.path.name} is gone: {one.what}" for one in self._sockets() if one.missing]

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="keep folder")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        touched = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK)
            try:
                await self.look()
                if time.monotonic() - touched > _TOUCH:
                    touched = time.monotonic()
                    self._folder.touch()
            except (CliError, OSError) as error:
                self._once(str(error))
            except Exception as error:  # whatever it is, the pool goes on
                self._mistakes.log_once(error)

    async def look(self) -> None:
        """Mends what is missing."""
        self.also()
        for name in self._folder.restore():
            self._say(f"{name} was removed and is written again")
        for one in self._sockets():
            if (mended := one.look()) is not None:
                self._say(mended)
            if one.missing and one.anew is not None:
                await one.anew()
                self._say(f"{one.path.name} was removed and is made anew")
            elif one.missing:
                self._once(f"{one.path.name} is gone: {one.what}")

    def _once(self, message: str) -> None:
        if message not in self._told and len(self._told) < 1000:
            self._told.add(message)
            self._say(message)
