"""One running replica: an engine, its agent and their common state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import httpx

from plumage.membership import Member, MemberState
from plumage_cli.local.plan.processes import ReplicaPlan
from plumage_cli.local.pool_view import ReplicaView
from plumage_cli.local.processes.child import Child, ChildState

__all__ = ["Replica"]

log = logging.getLogger(__name__)

_INTERVAL = 0.1  # seconds between two checks of a replica that is not ready
_AGENT_SECONDS = 15.0  # a healthy engine waits this long for its agent after the warm-up, then serves without it


class Replica:
    """`state` follows the processes.

    An engine that ended makes the replica Warming until it answers again. Without its agent a replica still serves, but
    its cache is not in the directory. on_change: called when `state` changed.
    """

    def __init__(
        self, plan: ReplicaPlan, engine: Child, agent: Child, http: httpx.AsyncClient, on_change: Callable[[], None]
    ) -> None:
        self.plan = plan
        self.engine = engine
        self.agent = agent
        self.state = MemberState.WARMING
        self.without_agent = False  # Ready, although its agent did not become ready
        self._http = http
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None

    @property
    def view(self) -> ReplicaView:
        """As other commands see it."""
        return {
            "id": self.plan.id,
            "state": self.state.value,
            "url": self.plan.engine.url,
            "agentUrl": self.plan.agent.url,
            "engine": self.engine.view,
            "agent": self.agent.view,
        }

    @property
    def member(self) -> Member:
        return Member(self.plan.id, self.plan.engine.url, self.plan.agent.url, self.state)

    @property
    def warming(self) -> bool:
        """Whether its engine runs but does not serve yet."""
        return self.state is MemberState.WARMING and self.engine.state is ChildState.RUNNING

    def start(self) -> None:
        self.engine.start()
        self.agent.start()
        self._task = asyncio.create_task(self._watch(), name=f"watch {self.plan.id}")

    def engine_changed(self) -> None:
        """The engine started or ended. Without it the replica takes no requests."""
        if self.engine.state is not ChildState.RUNNING and self.state is MemberState.READY:
            self.set_state(MemberState.WARMING)

    def set_state(self, state: MemberState) -> None:
        if state is not self.state:
            self.state = state
            self._on_change()

    async def drain(self, token: str, seconds: float) -> bool:
        """Ask the agent to wait until no request is in flight; False if some still were after `seconds`."""
        headers = {"Authorization": f"Bearer {token}"}
        try:
            reply = await self._http.post(
                f"{self.plan.agent.url}/v1/plumage/drain",
                json={"timeoutSeconds": seconds},
                headers=headers,
                timeout=seconds + 5.0,
            )
        except httpx.HTTPError as error:
            log.warning("%s could not be drained: %s", self.plan.id, type(error).__name__)
            return False
        return reply.is_success

    async def stop(self, grace: float) -> None:
        """End both processes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(self.agent.stop(grace), self.engine.stop(grace))

    async def _watch(self) -> None:
        while True:
            if self.warming:
                await self._warm()
            await asyncio.sleep(_INTERVAL)

    async def _warm(self) -> None:
        """Wait until the engine answers and its agent has warmed it up, or has taken too long."""
        if not await self._answers(self.plan.engine.ready):
            return
        deadline = time.monotonic() + self.plan.agent.ready_seconds - self.plan.engine.ready_seconds + _AGENT_SECONDS
        while self.warming:
            ready = await self._answers(self.plan.agent.ready)
            if ready or time.monotonic() > deadline:
                self.without_agent = not ready
                self.set_state(MemberState.READY)
                return
            await asyncio.sleep(_INTERVAL)

    async def _answers(self, url: str) -> bool:
        try:
            return (await self._http.get(url, timeout=2.0)).status_code == 200
        except httpx.HTTPError:
            return False
