"""The file that lists the pool's replicas and their states for the router."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from plumage.directory.client.tasks import UnexpectedErrors
from plumage_cli.errors import CliError
from plumage_cli.local.folder.pool_folder import PoolFolder

__all__ = ["MembershipFile"]

_NAME = "membership.json"
_RETRY = 1.0  # seconds between a failed write and the next try


class MembershipFile:
    """Written after each change. pack: its content. report: gets one line when writes begin to fail and one when they
    succeed again. A failed write is tried again each second; an error in our code is logged with its traceback."""

    def __init__(
        self, folder: PoolFolder, pack: Callable[[], Mapping[str, Any]], report: Callable[[str], None]
    ) -> None:
        self.error: str | None = None  # why the file is out of date
        self._folder = folder
        self._pack = pack
        self._report = report
        self._mistakes = UnexpectedErrors(f"writing {_NAME}", foreseen=())
        self._current = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._retry(), name="write membership file")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def write(self) -> None:
        """Call it after each change of what `pack` returns."""
        before, self.error = self.error, self._try()
        if self.error:
            self._current.clear()
        else:
            self._current.set()
        if self.error and not before:
            self._report(f"{self.error}; trying again each second")
        elif before and not self.error:
            self._report(f"{_NAME} is up to date again")

    def _try(self) -> str | None:
        """Write the file; the error, or None."""
        try:
            self._folder.write(_NAME, self._pack())
        except CliError as error:
            return str(error)
        except Exception as error:
            self._mistakes.log_once(error)
            return (
                f"can't write {_NAME}: {error!r}, an error in plumage; the router keeps the replicas that it knows. "
                "If the error stays, end the pool and start it again"
            )
        return None

    async def is_current_within(self, seconds: float) -> bool:
        """Whether the file is up to date, now or within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._current.wait()
        except TimeoutError:
            return False
        return True

    async def _retry(self) -> None:
        while True:
            await asyncio.sleep(_RETRY)
            if self.error:
                self._write_safely()

    def _write_safely(self) -> None:
        try:
            self.write()
        except Exception as error:  # `report` may fail too: the terminal is gone, but the pool runs
            self._mistakes.log_once(error)
