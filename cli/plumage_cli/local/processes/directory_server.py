"""The directory's server of a pool: started, watched, and restarted at the same address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import redis

from plumage.directory.server.local_server import LocalServer
from plumage.errors import PlumageError
from plumage_cli.errors import CliError
from plumage_cli.local.pool_view import DirectoryView
from plumage_cli.local.processes.child import ChildState, backoff, exit_text

__all__ = ["WatchedDirectory"]

log = logging.getLogger(__name__)

_INTERVAL = 0.1  # seconds between two checks


class WatchedDirectory:
    """A LocalServer that is restarted when it ends. orphaned: a command that its guard runs when this process was
    killed.

    `restarts`: how often a running server ended, `replaced`: how many of these because its socket was deleted.
    `last_exit`: how it ended last, None if it never did.
    """

    def __init__(self, folder: Path, max_memory: int, orphaned: Sequence[str] = ()) -> None:
        self._server = LocalServer(folder, max_memory=max_memory, orphaned=orphaned)
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.pid: int | None = None
        self.restarts = 0
        self.replaced = 0
        self.last_exit: str | None = None
        self._counted = False  # the end of the last server is in `restarts`

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def running(self) -> bool:
        return self._server.running

    @property
    def view(self) -> DirectoryView:
        """As other commands see it."""
        state = ChildState.RUNNING if self.running else ChildState.WAITING
        return {
            "pid": self.pid,
            "state": state.value,
            "restarts": self.restarts,
            "lastExit": self.last_exit,
            "replaced": self.replaced,
        }

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._start)
        except PlumageError as error:
            raise CliError(f"the directory's server did not start: {error}") from None
        self._task = asyncio.create_task(self._watch(), name="watch directory")

    @property
    def socket(self) -> Path:
        """Path of the Unix socket on which it listens."""
        return self._server.socket

    async def restart(self) -> None:
        """Replace a server whose socket is gone. Agents publish their caches again. CliError if the new one does not
        start; then `_watch` tries again."""
        self._count_end()
        if _exists(self.pid):
            self.replaced += 1
            self.last_exit = "was replaced, because its socket was deleted"
        else:  # its guard is still removing what it left
            self.last_exit = "ended"
        error = await self._try(self._replace)
        if error is not None:
            raise CliError(f"the directory's server did not start: {error}")

    async def _try(self, start: Callable[[], None]) -> Exception | None:
        async with self._starting:
            try:
                await asyncio.to_thread(start)
            except (PlumageError, OSError, redis.RedisError) as error:
                self.last_exit = f"did not start: {error}"
                log.warning("the directory's server %s", self.last_exit)
                return error
        return None

    def _replace(self) -> None:
        self._server.stop()
        self._start()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._server.stop)

    def _count_end(self) -> None:
        """Counts it once: the folder's watcher and `_watch` may both notice it."""
        self.restarts += not self._counted
        self._counted = True

    def _start(self) -> None:
        self._server.start()
        self._counted = False
        with redis.Redis.from_url(self.url, protocol=2) as client:
            info = client.info("server")
        self.pid = int(info["process_id"]) if isinstance(info, dict) else None

    async def _watch(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(_INTERVAL)
            if self._server.running or self._starting.locked():
                failures = 0
                continue
            failures += 1
            if (code := self._server.exit_code) is not None:  # else the last start failed
                self._count_end()
                self.last_exit = exit_text(code)
            log.warning("the directory's server %s; restarting it in %.2g s", self.last_exit, backoff(failures))
            await asyncio.sleep(backoff(failures))
            if not self._server.running:  # `restart` was faster
                await self._try(self._start)


def _exists(pid: int | None) -> bool:
    """Whether the process runs. A zombie does not."""
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
