"""Checks the engine, and derives the replica's state from the answers.

The state is the first that applies: draining, unhealthy, stalled, warming, ready. Each check reports it, with the load,
to the directory's writer. A drain, which the pod's preStop hook asks for, waits for checks that find no request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from plumage.directory.publisher.writer import DirectoryWriter
from plumage.directory.schema import Load, State
from plumage.settings.agent_config import AgentConfig
from plumage_engine.agent.engine.client import EngineClient, EngineDownError
from plumage_engine.agent.engine.engine_metrics import EngineLoad
from plumage_engine.agent.engine.restart_detection import RestartWatch
from plumage_engine.agent.engine.stall_detection import StallWatch
from plumage_engine.agent.engine_updates.adapters import AdapterSync
from plumage_engine.agent.lifecycle.warmup import WarmupResult

__all__ = ["StateWatch"]

log = logging.getLogger(__name__)

MISSES = 4  # failed checks in a row until the engine is unhealthy: two seconds at the default interval
CALM = 4  # factor on the interval while the engine answers and is ready
QUIET = 0.5  # seconds without requests that end a drain; a router may send one before it reads the new state


class StateWatch:
    """Load and state of one replica.

    load: of the last check that the engine answered. answered: whether it ever answered.
    warmup: result of the warm-up since the engine's last start; None until it ends.
    adapters: of the engine, which a new replica waits for.
    cold: set when the engine has started and needs a warm-up.
    """

    def __init__(
        self,
        config: AgentConfig,
        engine: EngineClient,
        writer: DirectoryWriter,
        batches: Callable[[], int],
        adapters: AdapterSync | None = None,
    ) -> None:
        """batches: gives the event batches so far, which are progress of the engine."""
        self.load = EngineLoad()
        self.answered = False
        self.warmup: WarmupResult | None = None
        self.cold = asyncio.Event()
        self._config = config
        self._engine = engine
        self._writer = writer
        self._batches = batches
        self._adapters = adapters
        self._stall = StallWatch(config.stalled_seconds)
        self._restart = RestartWatch()
        self._misses = MISSES  # unhealthy until it answers
        self._error = "no check has ended yet"
        self._checked = 0.0  # when the last complete check began
        self._checking = asyncio.Lock()
        self._stalled = False
        self._draining = False

    @property
    def state(self) -> State:
        if self._draining:
            return State.DRAINING
        if self._misses >= MISSES:
            return State.UNHEALTHY if self.answered else State.WARMING
        if self._stalled:
            return State.STALLED
        return State.READY if self.warmup is not None and self._has_adapters else State.WARMING

    @property
    def _has_adapters(self) -> bool:
        return self._adapters is None or self._adapters.settled

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    @property
    def not_ready_reason(self) -> str | None:
        """For people; None when the replica is ready."""
        state = self.state
        if state is State.WARMING:
            if not self.answered:
                return f"its engine does not answer yet: {self._error}"
            return "it warms up from its peers" if self.warmup is None else "its engine loads adapters"
        reasons = {
            State.DRAINING: "it drains, because its pod ends",
            State.UNHEALTHY: f"its engine stopped answering: {self._error}",
            State.STALLED: f"its engine made no step for {self._config.stalled_seconds:g} s with requests running",
        }
        return reasons.get(state)

    @property
    def in_flight(self) -> int:
        """Requests in the engine; 0 for an engine that stopped answering."""
        return 0 if self._misses >= MISSES else int(self.load.running + self.load.waiting)

    async def check_ready(self) -> bool:
        """Ready now. It checks the engine again, because the engine may have restarted since the last check.
        Concurrent calls share one check, so that many callers do not count several misses at once."""
        if self.ready:
            asked = time.monotonic()
            async with self._checking:
                if self._checked < asked:
                    await self.check()
        return self.ready and not self._misses and not self._restart.doubtful

    async def run(self) -> None:
        """Check at intervals, until cancelled."""
        while True:
            started = time.monotonic()
            await self.check()
            await asyncio.sleep(max(0.0, self._interval() - (time.monotonic() - started)))

    async def check(self) -> None:
        began = time.monotonic()
        try:
            self.load = await self._engine.load()
        except EngineDownError as error:
            self._error = str(error)
            self._misses += 1
            if self._misses == MISSES and self.answered:
                log.warning("%s: %s", self._config.replica, error)
        else:
            first = not self.answered
            self._misses, self.answered = 0, True
            if self._restart.has_started(self.load):
                self._handle_start(first=first)
        self._checked = began
        self._stalled = self._stall.is_stalled(self.load, self._batches(), time.monotonic())
        self.report()

    def finish_warmup(self, result: WarmupResult) -> None:
        """Store the result, and report the new state."""
        self.warmup = result
        self.report()

    async def drain(self, seconds: float) -> dict[str, Any]:
        """Report Draining, then wait until nothing is in flight or `seconds` have passed. It can't be undone, because a
        pod that drains is about to be deleted."""
        started = time.monotonic()
        self._draining = True
        self.report()
        quiet_since: float | None = None
        while (now := time.monotonic()) - started < seconds:
            await self.check()
            if self.in_flight:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif now - quiet_since >= QUIET:
                break
            await asyncio.sleep(min(0.1, self._config.load_seconds))
        left = self.in_flight
        return {"drained": not left, "inFlight": left, "seconds": round(time.monotonic() - started, 3)}

    def _interval(self) -> float:
        """Seconds between two checks. A short interval is for changes of state; the load is published with the
        heartbeat only."""
        quick = self._config.load_seconds
        calm = self.state is State.READY and not self._misses and not self._restart.doubtful
        return max(quick, min(CALM * quick, self._config.stalled_seconds / 4)) if calm else quick

    def _handle_start(self, *, first: bool) -> None:
        """The cache is empty. The exception is an engine that served before this agent started: the agent restarted,
        not the engine."""
        if first and self.load.query_tokens:
            self.warmup = WarmupResult(reason="its engine has served before")
            if self._adapters is not None:
                self._adapters.served_before()
        else:
            if self._adapters is not None:
                self._adapters.restarted()
            self.warmup = None
            self.cold.set()

    def report(self) -> None:
        """Report state and load to the directory's writer."""
        engine = self.load
        served = None if self._adapters is None else self._adapters.served
        load = Load(
            int(engine.running),
            int(engine.waiting),
            engine.kv_usage,
            int(engine.held_back),
            engine.running_adapters,
            served,
        )
        self._writer.report(state=self.state, load=load)
