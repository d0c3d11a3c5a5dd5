"""A pool on this machine: makes it as the manifest says, keeps it so, scales it, and takes it down whole.

The membership file is written after every change of a replica's state, so the router never learns of one later than by
its own probe. One drain path for everything that leaves: Draining in the membership file → the router chooses others →
the agent waits for what is in flight → SIGTERM. Nobody leaves whose leaving can't be written there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from plumage.api.v1alpha1 import InferencePool
from plumage.membership import MemberState, pack_members
from plumage.models import resolve
from plumage.settings import ENGINE_KEY, SALT_KEY
from plumage_cli.errors import CliError, ProcessFailedError
from plumage_cli.local.child import Child, ChildState
from plumage_cli.local.directory import WatchedDirectory
from plumage_cli.local.folder import PoolFolder
from plumage_cli.local.keeper import Keeper, KeptSocket
from plumage_cli.local.log import ChildLog
from plumage_cli.local.membership import MembershipFile
from plumage_cli.local.plan import HOST, ProcessPlan, Site, plan_replica, plan_router
from plumage_cli.local.ports import free_ports, listen_at
from plumage_cli.local.replica import Replica
from plumage_cli.local.sweeper import sweep_command
from plumage_cli.local.view import ChildView, DirectoryView, PoolView, ReplicaView
from plumage_cli.local.vllm import VllmSite, needs_weights, write_tiny_model

__all__ = ["Supervisor"]

log = logging.getLogger(__name__)

_LOOK = 0.05  # seconds between two looks while waiting for readiness
_HOPELESS = 4  # crashes in a row, before it ever was ready, after which a start is given up
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_DECISIONS = 20  # last decisions that the view carries
_TOLD = 10.0  # seconds for a membership file that can't be written to be written all the same, before nobody drains
_SILENT = 5.0  # seconds without the router's word after which it is not told as if it were new
CONTROL = "control.sock"
_NOTICED = 0.3  # seconds in which every router has read the membership file again
Say = Callable[[str], None]


class Supervisor:
    """Runs one pool. `say` gets one line for everything that a person should see happen."""

    def __init__(
        self,
        pool: InferencePool,
        folder: PoolFolder,
        *,
        port: int,
        host: str = HOST,
        api_keys: Path | None = None,
        vllm: VllmSite | None = None,
        say: Say = log.info,
    ) -> None:
        self.pool = pool
        self.folder = folder
        self.replicas: dict[str, Replica] = {}
        self.router: Child | None = None
        self.router_plan: ProcessPlan | None = None
        self.directory: WatchedDirectory | None = None
        self.started = time.time()
        self._listen = (host, port)
        self._door: socket.socket | None = None  # the clients' port: it outlives any router
        self._api_keys = api_keys
        self._vllm = vllm
        self._say = say
        self._token = ""
        self._site: Site | None = None
        self._ports = {port}  # the router takes its own last
        self._scaling = asyncio.Lock()
        self._http = httpx.AsyncClient(limits=httpx.Limits(max_connections=64), trust_env=False)
        self._asking: asyncio.Task[None] | None = None
        self._traffic: dict[str, Any] = {}
        self._members = MembershipFile(folder, self._membership, say)
        self._kept: dict[Path, KeptSocket] = {}
        self._keeper = Keeper(folder, self._sockets, say)
        self._heard = 0.0  # when the router answered last, monotonic

    @property
    def endpoint(self) -> str:
        """Where clients send their requests."""
        assert self.router_plan is not None, "started"
        return self.router_plan.url

    @property
    def needs_key(self) -> bool:
        """Whether clients must send an API key."""
        return self._api_keys is not None

    async def start(self) -> None:
        """Everything up and ready; CliError says what did not come up, and why. Call `stop` in any case."""
        self._door = listen_at(*self._listen)
        self._token = self.folder.secret("fleet.token").read_text().strip()
        for name in ("admin.key", ENGINE_KEY, SALT_KEY):
            self.folder.secret(name)
        self._site = await self._make_site()
        self._members.start()
        self._keeper.start()
        self._add_replicas(range(self.pool.spec.initial_replicas))
        self._start_router()
        await self._until_ready()
        self._asking = asyncio.create_task(self._keep_asking(), name="ask router")

    async def scale(self, replicas: int) -> None:
        """That many replicas: new ones are warmed before they serve, leaving ones drained before they end. CliError for
        fewer while one warms: which caches are of least use is not known then; or while routers can't be told."""
        self._refuse_while_warming(replicas)
        async with self._scaling:
            self._refuse_while_warming(replicas)
            more = replicas - len(self.replicas)
            if more > 0:
                await self._grow(more)
            elif more < 0:
                await self._shrink(self._coldest(-more))

    def _refuse_while_warming(self, replicas: int) -> None:
        """Not for an engine that crashed and is not up again: waiting for it may have no end."""
        warming = [name for name, replica in self.replicas.items() if replica.warming]
        if replicas < len(self.replicas) and warming:
            raise CliError(
                f"{', '.join(warming)} still warms: scale down once all replicas are Ready, see: plumage status"
            )

    async def _grow(self, more: int) -> None:
        taken = {replica.plan.index for replica in self.replicas.values()}
        added = self._add_replicas([index for index in range(len(taken) + more) if index not in taken][:more])
        try:
            await self._until(lambda: all(replica.state is MemberState.READY for replica in added), added)
        except CliError:
            await asyncio.gather(*(replica.stop(_GRACE) for replica in added))
            self._forget(added)
            raise

    async def stop(self) -> None:
        """Drain and end everything, and remove the folder. `kill` in the meantime makes it quick."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._keeper.stop()
        await self._members.stop()
        if self._door is not None:
            self._door.close()  # the router has its own until it ends: clients that come now are refused
        if self.router is not None:
            await self.router.stop(self.pool.spec.rollout.drain_timeout_seconds + _GRACE)
        await asyncio.gather(*(replica.stop(_GRACE) for replica in self.replicas.values()))
        if self.directory is not None:
            await self.directory.stop()
        await self._http.aclose()
        self.folder.remove()

    def kill(self) -> None:
        """End all processes at once; only sensible while `stop` waits for them."""
        for child in self.children():
            child.signal(signal.SIGKILL)

    def children(self) -> list[Child]:
        """All processes but the directory's server."""
        router = [] if self.router is None else [self.router]
        return router + [child for replica in self.replicas.values() for child in (replica.engine, replica.agent)]

    async def _make_site(self) -> Site:
        model, weights = self.pool.spec.model, None
        if self._vllm is not None:
            if needs_weights(self.pool):
                weights = await asyncio.to_thread(write_tiny_model, self._vllm, self.folder.path / "model")
            else:
                weights = resolve(model.uri)
        tokenizer = resolve(model.tokenizer or model.uri)
        return Site(self.folder.path, tokenizer, await self._start_directory(), weights, self._vllm)

    async def _start_directory(self) -> str:
        spec = self.pool.spec.directory
        if spec.redis_ref is not None:
            return spec.redis_ref.url
        self.directory = WatchedDirectory(
            self.folder.path / "dir", int(spec.managed.max_memory), sweep_command(self.folder.path)
        )
        await self.directory.start()
        self._say(f"directory ready (pid {self.directory.pid})")
        return self.directory.url

    def _start_router(self) -> None:
        assert self._site is not None, "start() made it"
        host, port = self._listen
        fd = None if self._door is None else self._door.fileno()
        self.router_plan = plan_router(self.pool, self._site, port, host=host, api_keys=self._api_keys, fd=fd)
        self.router = self._child(self.router_plan)
        self.router.start()

    def _add_replicas(self, indices: Iterable[int]) -> list[Replica]:
        assert self._site is not None, "start() made it"
        added = [self._replica(self._site, index) for index in indices]
        self.replicas |= {replica.plan.id: replica for replica in added}
        self._members.write()
        for replica in added:
            replica.start()
        return added

    def _forget(self, replicas: Iterable[Replica]) -> None:
        """They are gone; their numbers and ports may be used again."""
        for replica in replicas:
            del self.replicas[replica.plan.id]
            for plan in (replica.plan.engine, replica.plan.agent):
                self.folder.forget(f"{plan.name.replace(' ', '-')}.json")
            self._ports -= {replica.plan.engine.settings["port"], replica.plan.agent.settings["listen"]["port"]}
        self._members.write()

    def _replica(self, site: Site, index: int) -> Replica:
        engine_port, agent_port = free_ports(2, self._ports, start=random.SystemRandom().randrange(12_000))
        self._ports |= {engine_port, agent_port}
        plan = plan_replica(self.pool, site, index, engine_port, agent_port)
        return Replica(plan, self._child(plan.engine), self._child(plan.agent), self._http, self._members.write)

    def _child(self, plan: ProcessPlan) -> Child:
        """Its settings are written before each start: somebody may have removed the file."""
        stem = plan.name.replace(" ", "-")
        config = self.folder.write(f"{stem}.json", plan.settings)
        return Child(
            plan,
            config,
            ChildLog(self.folder.path / f"{stem}.log"),
            self._child_changed,
            prepare=lambda: self._prepare(f"{stem}.json", plan),
            fds=[self._door.fileno()] if plan.role == "router" and self._door is not None else [],
        )

    def _prepare(self, name: str, plan: ProcessPlan) -> None:
        """All files that a process reads at its start. CliError where one is missing and can't be written."""
        self.folder.restore()
        if not (self.folder.path / name).exists():
            self.folder.write(name, plan.settings)

    def _child_changed(self, child: Child) -> None:
        for replica in self.replicas.values():
            if replica.engine is child:
                replica.engine_changed()
        if child.state is ChildState.WAITING:
            self._say(f"{child.plan.name} {child.last_exit}; it is started again")

    async def _until_ready(self) -> None:
        replicas = list(self.replicas.values())
        await self._until(lambda: all(replica.state is MemberState.READY for replica in replicas), replicas)
        assert self.router is not None
        assert self.router_plan is not None
        await self._until_answers(self.router, self.router_plan)
        self._say(f"router ready at {self.router_plan.url} (pid {self.router.pid})")

    async def _until(self, ready: Callable[[], bool], replicas: list[Replica]) -> None:
        said: set[str] = set()
        deadline = time.monotonic() + max((replica.plan.agent.ready_seconds for replica in replicas), default=1.0)
        while not ready():
            for child in (child for replica in replicas for child in (replica.engine, replica.agent)):
                _refuse_hopeless(child)
            self._say_ready(replicas, said)
            if time.monotonic() > deadline:
                late = next(replica for replica in replicas if replica.state is not MemberState.READY)
                raise _not_ready(late.engine)
            await asyncio.sleep(_LOOK)
        self._say_ready(replicas, said)

    def _say_ready(self, replicas: list[Replica], said: set[str]) -> None:
        for replica in replicas:
            if replica.state is MemberState.READY and replica.plan.id not in said:
                said.add(replica.plan.id)
                without = "; its agent does not answer, so nobody knows its cache" if replica.without_agent else ""
                self._say(f"replica {replica.plan.id} ready (engine pid {replica.engine.pid}){without}")

    async def _until_answers(self, child: Child, plan: ProcessPlan) -> None:
        deadline = time.monotonic() + plan.ready_seconds
        while time.monotonic() < deadline:
            _refuse_hopeless(child)
            try:
                status = (await self._http.get(plan.ready, timeout=2.0)).status_code
                if status == 200 or not self.replicas:  # a router without replicas works, and says 503
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(_LOOK)
        raise _not_ready(child)

    def _coldest(self, count: int) -> list[Replica]:
        """The replicas whose caches were of least use; among equals the youngest."""
        used = {replica["id"]: replica["hitTokens"] for replica in self._traffic.get("replicas", [])}
        return sorted(self.replicas.values(), key=lambda replica: (used.get(replica.plan.id, 0), -replica.plan.index))[
            :count
        ]

    async def _shrink(self, leaving: list[Replica]) -> None:
        """Routers are told first: requests that they send to what ends unannounced are lost. CliError, and all stay as
        they were, when that can't be done."""
        were = [(replica, replica.state, replica.engine.pid) for replica in leaving]
        for replica in leaving:
            replica.become(MemberState.DRAINING)
        if not await self._members.is_right_within(_TOLD):
            why = self._members.trouble
            for replica, state, pid in were:
                replica.become(state if replica.engine.pid == pid else MemberState.WARMING)
            raise CliError(f"no replica was drained, since the router can't be told of it: {why}")
        for replica in leaving:
            self._say(f"replica {replica.plan.id} drains")
        await asyncio.sleep(_NOTICED)
        await asyncio.gather(*(self._remove(replica) for replica in leaving))

    async def _remove(self, replica: Replica) -> None:
        timeout = self.pool.spec.rollout.drain_timeout_seconds
        drained = await replica.drain(self._token, timeout)
        await replica.stop(_GRACE)
        self._forget([replica])
        self._say(f"replica {replica.plan.id} is gone{'' if drained else ', not all of its requests had ended'}")

    async def _keep_asking(self) -> None:
        """What the router says of its traffic, once a second; the last answer stays while it is away."""
        assert self.router_plan is not None, "started"
        url = f"{self.router_plan.url}/plumage/v1/status?decisions={_DECISIONS}"
        headers = {"Authorization": f"Bearer {(self.folder.path / 'admin.key').read_text().strip()}"}
        while True:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                reply = await self._http.get(url, headers=headers, timeout=1.0)
                if reply.is_success:
                    self._traffic, self._heard = reply.json(), time.monotonic()
            await asyncio.sleep(1.0)

    def _traffic_now(self) -> dict[str, Any]:
        """The router's last words. How fresh the directory is, is not known while the router is silent or the
        directory's server is away."""
        silent = time.monotonic() - self._heard > _SILENT
        away = self.directory is not None and not self.directory.running
        return {**self._traffic, "directory": "Unknown"} if self._traffic and (silent or away) else self._traffic

    def keep_also(self, look: Callable[[], None]) -> None:
        """Call this about once a second."""
        self._keeper.also = look

    def keep(self, socket: KeptSocket) -> None:
        """A socket of the folder that is not a child's, to be kept there."""
        self._kept[socket.path] = socket

    def _sockets(self) -> list[KeptSocket]:
        """The same objects at each look, of those that there are now."""
        wanted = {path: one for path, one in self._kept.items() if path.name == CONTROL}
        for one in (*self._directory_socket(), *self._event_sockets()):
            wanted[one.path] = self._kept.get(one.path, one)
        self._kept = wanted
        return list(wanted.values())

    def _directory_socket(self) -> list[KeptSocket]:
        directory = self.directory
        if directory is None:
            return []
        what = "agents and routers that start can't reach the directory"
        return [KeptSocket(directory.socket, lambda: _server_pid(directory), what, directory.restart)]

    def _event_sockets(self) -> list[KeptSocket]:
        return [
            KeptSocket(
                self.folder.path / f"{name}-{replica.plan.index}",
                partial(_pid_of, replica.engine),
                f"an agent of {replica.plan.id} that starts again will not learn what its engine caches; end the "
                f"engine (pid {replica.engine.pid}) at a quiet moment, and it is started again",
            )
            for replica in self.replicas.values()
            for name in ("events", "replay")
        ]

    def _membership(self) -> dict[str, Any]:
        return pack_members(self.pool.metadata.name, (replica.member for replica in self.replicas.values()))

    def view(self) -> PoolView:
        """The pool as other commands see it."""
        return {
            "pool": self.pool.metadata.name,
            "pid": os.getpid(),
            "endpoint": self.router_plan.url if self.router_plan else None,
            "started": self.started,
            "model": self.pool.spec.model.served_name,
            "policy": self.pool.spec.router.policy,
            "eviction": self.pool.spec.engine.eviction.policy,
            "router": _child_view(self.router) if self.router else None,
            "directory": _directory_view(self.directory) if self.directory else None,
            "replicas": [_replica_view(replica) for replica in self.replicas.values()],
            "traffic": self._traffic_now(),
            "troubles": self._keeper.troubles,
        }


def _server_pid(directory: WatchedDirectory) -> int | None:
    return directory.pid if directory.running else None


def _pid_of(child: Child) -> int | None:
    return child.pid


def _replica_view(replica: Replica) -> ReplicaView:
    return {
        "id": replica.plan.id,
        "state": replica.state.value,
        "url": replica.plan.engine.url,
        "agentUrl": replica.plan.agent.url,
        "engine": _child_view(replica.engine),
        "agent": _child_view(replica.agent),
    }


def _directory_view(directory: WatchedDirectory) -> DirectoryView:
    state = ChildState.RUNNING if directory.running else ChildState.WAITING
    return {"pid": directory.pid, "state": state.value, "restarts": directory.restarts}


def _child_view(child: Child) -> ChildView:
    return {"pid": child.pid, "state": child.state.value, "restarts": child.restarts, "lastExit": child.last_exit}


def _refuse_hopeless(child: Child) -> None:
    if child.refused:  # it would do so again
        raise ProcessFailedError(f"{child.plan.name} can't work with its settings:\n{child.log.last_words()}")
    if child.crashes >= _HOPELESS:
        raise ProcessFailedError(
            f"{child.plan.name} {child.last_exit}, {child.crashes} times in a row:\n{child.log.last_words()}"
        )


def _not_ready(child: Child) -> CliError:
    return ProcessFailedError(
        f"{child.plan.name} was not ready within {child.plan.ready_seconds:g} s; its last words:\n"
        f"{child.log.last_words()}"
    )
