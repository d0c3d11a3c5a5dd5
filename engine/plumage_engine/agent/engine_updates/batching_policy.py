"""Sends the batching policy of a pool's settings to the running engine (`POST /v1/plumage/feather`).

The agent reads the file with the engine's settings every `PERIOD` seconds. In a cluster it is a mounted ConfigMap.
It sends the value of `feather` when that changes, and once a minute, because a restarted engine may have read an older
file. The engine ignores a policy that it has already. An engine without the route (stock vLLM) is asked again a minute
later. A refused policy or an unreadable file is logged once and shown in `error`. The previous policy stays in force.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

from plumage.backoff import Backoff
from plumage.directory.client.tasks import run_forever
from plumage.errors import ConfigurationError
from plumage.version_skew import MARK
from plumage_engine.agent.engine.client import EngineClient, EngineDownError

__all__ = ["BatchingPolicySender"]

log = logging.getLogger(__name__)

PERIOD = 5.0  # seconds; the kubelet takes up to a minute to bring a changed ConfigMap
AGAIN = 60.0  # seconds
MOST_BYTES = 1 << 20  # as a ConfigMap


class BatchingPolicySender:
    """`counts`: sent, unwanted (the engine has no such route), refused, failures (the engine did not answer).
    `error`: why the wanted policy is not in force; None when it is."""

    def __init__(
        self,
        path: Path,
        engine: EngineClient,
        again: float = AGAIN,
        rng: random.Random | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter(sent=0, unwanted=0, refused=0, failures=0)
        self.error: str | None = None
        self._path = path
        self._engine = engine
        self._again = again
        self._rng = rng or random.Random()
        self._sent: bytes | None = None
        self._quiet = 0.0  # seconds since the last policy was sent

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(self._rng, longest=PERIOD)
        await run_forever(self._turn, "batching policy for the engine", backoff=backoff, failed=self._failed)

    async def _turn(self) -> None:
        try:
            await self.send_if_due()
        except EngineDownError:  # the load watch reports it
            self.counts["failures"] += 1
        await asyncio.sleep(PERIOD)
        self._quiet += PERIOD

    def _failed(self, error: Exception) -> None:
        self.counts["failures"] += 1

    async def send_if_due(self) -> None:
        """Send the policy if it changed or is due. EngineDownError when the engine can't be reached."""
        try:
            wanted = _read(self._path)
        except ConfigurationError as error:
            self._set_error(str(error))
            return
        if wanted == self._sent and self._quiet < self._again:
            return
        try:
            known = await self._engine.take_feather(wanted)
        except ConfigurationError as error:
            self.counts["refused"] += 1
            self._set_error(f"the engine refuses its batching policy: {error}")
        else:
            self.counts["sent" if known else "unwanted"] += 1
            self._set_error(None)
        self._sent, self._quiet = wanted, 0.0

    def _set_error(self, error: str | None) -> None:
        if error is not None and error != self.error:
            log.warning("%s; the previous policy stays in force", error)
        self.error = error


def _read(path: Path) -> bytes:
    """The value of `feather`, as JSON. It has the operator's mark where the file has one, so that the engine ignores
    fields of a newer operator. ConfigurationError when there is no `feather`."""
    try:
        with path.open("rb") as file:
            settings: Any = json.loads(file.read(MOST_BYTES))
        feather = settings["feather"]
        if isinstance(feather, dict):
            feather |= {name: settings[name] for name in MARK if name in settings}
        return json.dumps(feather, sort_keys=True).encode()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path.name} has no batching policy: {type(error).__name__}") from error
