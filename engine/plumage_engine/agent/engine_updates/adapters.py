"""Has the running engine serve the LoRA adapters of the agent's settings (`POST /v1/plumage/adapters`).

The agent reads `adapters` of its own settings file every `PERIOD` seconds. In a cluster it is a mounted ConfigMap. It
sends all of them each time, because the engine may have restarted; the engine loads in the background and answers at
once. An adapter that is no longer wanted is left out of the heartbeats first. A period later, when routers have stopped
sending requests for it, it is unloaded.

An engine without the route (stock vLLM) serves what its flags name: the agent reads that from `/v1/models`.

A new replica is ready once each adapter is loaded or has failed, or after `ADAPTER_SECONDS`. So a hub that does not
answer delays a replica, and does not keep it from serving.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from plumage.backoff import Backoff
from plumage.directory.client.tasks import run_forever
from plumage.errors import ConfigurationError
from plumage.fleet_report import AdapterReport, source_digest
from plumage.settings.agent_config import ADAPTER_SECONDS
from plumage_engine.agent.engine.client import EngineClient, EngineDownError

__all__ = ["AdapterSync"]

log = logging.getLogger(__name__)

PERIOD = 5.0  # seconds; the kubelet takes up to a minute to bring a changed ConfigMap
QUICK = 0.5  # seconds between two questions until the adapters of a new engine are loaded
MOST_BYTES: Final = 1 << 20  # as a ConfigMap


class AdapterSync:
    """wanted: the folder or repository of each adapter, by name, until `file` was read; None for no file.

    reports: None until the engine has answered. served: the adapters that requests may have; None where unknown.
    changed: called after each answer. clock: seconds.
    """

    def __init__(
        self,
        wanted: Mapping[str, str],
        engine: EngineClient,
        file: Path | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reports: list[AdapterReport] | None = None
        self.served: tuple[str, ...] | None = None
        self.changed: Callable[[], object] = lambda: None
        self._wanted = dict(wanted)
        self._file = file
        self._leaving: dict[str, str] = {}  # still sent, until the engine has answered after heartbeats left them out
        self._sent: dict[str, str] = {}  # with the last answer
        self._engine = engine
        self._rng = rng or random.Random()
        self._clock = clock
        self._settled = False
        self._asked: float | None = None  # when the engine was first asked, since its start
        self._error: str | None = None

    @property
    def used(self) -> bool:
        """Whether the pool has adapters, or had some until a moment ago."""
        return bool(self._wanted or self._leaving or self._sent)

    @property
    def settled(self) -> bool:
        """Whether each adapter is loaded or has failed since the engine's start, or took too long."""
        late = self._asked is not None and self._clock() - self._asked >= ADAPTER_SECONDS
        return self._settled or late or not self._wanted

    def restarted(self) -> None:
        """The engine has started: it has no adapters yet."""
        self._settled, self._asked = False, None
        self.reports, self.served = None, () if self.used else None

    def served_before(self) -> None:
        """The engine has served requests already: its replica does not wait for adapters."""
        self._settled = True

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(self._rng, longest=PERIOD)
        await run_forever(self._turn, "adapters of the engine", backoff=backoff, failed=lambda _: None)

    async def _turn(self) -> None:
        try:
            await self.check()
        except EngineDownError:  # the load watch reports it
            await asyncio.sleep(QUICK)
            return
        await asyncio.sleep(PERIOD if self.settled else QUICK)

    async def check(self) -> None:
        """Have the engine serve what the file says now. EngineDownError when the engine can't be reached."""
        wanted = self._read()
        self._leaving |= {name: path for name, path in self._wanted.items() if name not in wanted}
        self._leaving = {name: path for name, path in self._leaving.items() if name not in wanted}
        self._wanted = wanted
        if self.served is not None and any(name not in wanted for name in self.served):
            self.served = tuple(name for name in self.served if name in wanted)
            self.changed()
        if not self.used:
            self.reports, self.served = [], None
            self._settled = True  # a later first adapter does not make a ready replica wait
            return
        if self._asked is None:
            self._asked = self._clock()
        sent = {**wanted, **self._leaving}
        answer, why = None, "its engine has no route to load it: it needs the plugin of this Plumage"
        try:
            answer = await self._engine.want_adapters(sent)
        except ConfigurationError as error:
            why = str(error)
        if answer is None:
            await self._read_models(why)
        else:
            self.reports = [_about(one, wanted[one.name]) for one in answer.adapters if one.name in wanted]
            self.served = tuple(name for name in answer.served if name in wanted)
        self._sent, self._leaving = sent, {}
        self._settled = self._settled or all(one.state != "Loading" for one in self.reports or ())
        self.changed()

    async def _read_models(self, why: str) -> None:
        """Reads the adapters of an engine that loads none. why: the reason."""
        served = await self._engine.adapters()
        self.reports = [
            _about(AdapterReport(name) if name in served else AdapterReport(name, "Failed", why), source)
            for name, source in self._wanted.items()
        ]
        self.served = tuple(name for name in self._wanted if name in served)

    def _read(self) -> dict[str, str]:
        """What the file says; what it said before where it can't be read, which is logged once."""
        if self._file is None:
            return self._wanted
        try:
            with self._file.open("rb") as file:
                entries = json.loads(file.read(MOST_BYTES)).get("adapters", [])
            found = {str(entry["name"]): str(entry["path"]) for entry in entries}
        except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
            message = f"{self._file.name}: its adapters can't be read: {type(error).__name__}"
            if message != self._error:
                log.warning("%s; the previous ones stay", message)
            self._error = message
            return self._wanted
        self._error = None
        return found


def _about(report: AdapterReport, source: str) -> AdapterReport:
    return msgspec.structs.replace(report, source=source_digest(source))
