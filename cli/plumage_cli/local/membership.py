"""The file by which routers learn who is in the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from plumage.directory.client.tasks import UnexpectedErrors
from plumage_cli.errors import CliError
from plumage_cli.local.folder import PoolFolder

__all__ = ["MembershipFile"]

_NAME = "membership.json"
_AGAIN = 1.0  # seconds between a write that failed and the next


class MembershipFile:
    """Kept as `pack` says. A write that failed (a full disk, or a mistake of ours, which the log gets whole) is done
    again each second until it succeeds; `say` gets one line when that begins and one when it ends."""

    def __init__(self, folder: PoolFolder, pack: Callable[[], Mapping[str, Any]], say: Callable[[str], None]) -> None:
        self.trouble: str | None = None  # why the file is out of date, if it is
        self._folder = folder
        self._pack = pack
        self._say = say
        self._mistakes = UnexpectedErrors(f"keeping {_NAME}", foreseen=())
        self._right = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="keep membership file")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def write(self) -> None:
        """After each change of what `pack` says."""
        before, self.trouble = self.trouble, self._try()
        if self.trouble:
            self._right.clear()
        else:
            self._right.set()
        if self.trouble and not before:
            self._say(f"{self.trouble}; tried again each second")
        elif before and not self.trouble:
            self._say(f"{_NAME} is written again")

    def _try(self) -> str | None:
        """Writes; why it could not, if so."""
        try:
            self._folder.write(_NAME, self._pack())
        except CliError as error:
            return str(error)
        except Exception as error:
            self._mistakes.log_once(error)
            return (
                f"can't write {_NAME}: {error!r}, a mistake in plumage, so routers go on with the replicas they know; "
                "if it stays, end the pool and start it again"
            )
        return None

    async def is_right_within(self, seconds: float) -> bool:
        """Whether the file says what `pack` does, now or soon."""
        try:
            async with asyncio.timeout(seconds):
                await self._right.wait()
        except TimeoutError:
            return False
        return True

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN)
            if self.trouble:
                self._again()

    def _again(self) -> None:
        try:
            self.write()
        except Exception as error:  # nobody to `say` it to, perhaps: the terminal is gone, the pool is not
            self._mistakes.log_once(error)
