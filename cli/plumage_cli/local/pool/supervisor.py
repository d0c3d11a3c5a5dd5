"""The supervisor of a pool on this machine: starts its processes, restarts them, scales the pool, and ends it.

The membership file is written after every change of a replica's state. The router's next health check finds it at the
latest. A replica is deleted in this order: Draining in the membership file, the router chooses other replicas, the
agent drains, SIGTERM. A replica stays while the file can't be written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from plumage.api.v1alpha1 import InferencePool
from plumage.membership import MemberState, pack_members
from plumage.models import resolve
from plumage.settings.secrets import ENGINE_KEY, SALT_KEY
from plumage_cli.errors import CliError
from plumage_cli.local.folder.cleanup import cleanup_command
from plumage_cli.local.folder.pool_folder import PoolFolder
from plumage_cli.local.folder.watcher import FolderWatcher, WatchedSocket
from plumage_cli.local.plan.paths import HOST, LocalPaths
from plumage_cli.local.plan.processes import ProcessPlan, plan_replica, plan_router, reached_at
from plumage_cli.local.plan.vllm import VllmInterpreter, needs_weights
from plumage_cli.local.pool.connection_keeper import ConnectionKeeper
from plumage_cli.local.pool.membership_file import MembershipFile
from plumage_cli.local.pool.readiness import Readiness
from plumage_cli.local.pool.replica import Replica
from plumage_cli.local.pool.sockets import PoolSockets
from plumage_cli.local.pool.traffic import RouterTraffic
from plumage_cli.local.pool_view import PoolView
from plumage_cli.local.processes.child import Child, ChildState
from plumage_cli.local.processes.child_log import ChildLog
from plumage_cli.local.processes.directory_server import WatchedDirectory
from plumage_cli.local.processes.ports import free_ports, listen_at
from plumage_cli.local.processes.vllm_interpreter import write_tiny_model

__all__ = ["Supervisor"]

log = logging.getLogger(__name__)

_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_WRITE_SECONDS = 10.0  # to write the membership file before a scale-down fails
_READ_SECONDS = 0.3  # after which the router has read the membership file again
Report = Callable[[str], None]


class Supervisor:
    """Runs one pool. report: gets one line for every event that a user should see."""

    def __init__(
        self,
        pool: InferencePool,
        folder: PoolFolder,
        *,
        port: int,
        host: str = HOST,
        api_keys: Path | None = None,
        vllm: VllmInterpreter | None = None,
        routers: int = 1,
        report: Report = log.info,
    ) -> None:
        self.pool = pool
        self.folder = folder
        self.replicas: dict[str, Replica] = {}
        self.routers: list[Child] = []
        self.directory: WatchedDirectory | None = None
        self.started = time.time()
        self._listen = (host, port)
        self._most_routers = routers
        self._keeper: ConnectionKeeper | None = None  # has the clients' port and connections while routers restart
        self._api_keys = api_keys
        self._vllm = vllm
        self._report = report
        self._token = ""
        self._paths: LocalPaths | None = None
        self._ports = {port}
        self._scaling = asyncio.Lock()
        self._http = httpx.AsyncClient(limits=httpx.Limits(max_connections=64), trust_env=False)
        self._readiness = Readiness(self._http, report)
        self._traffic = RouterTraffic(self._http)
        self._members = MembershipFile(folder, self._membership, report)
        self._sockets = PoolSockets(folder.path)
        self._watcher = FolderWatcher(folder, self._current_sockets, report)

    @property
    def endpoint(self) -> str:
        """The URL for clients."""
        host, port = self._listen
        return f"http://{reached_at(host)}:{port}"

    @property
    def needs_key(self) -> bool:
        """Whether clients must send an API key."""
        return self._api_keys is not None

    async def start(self) -> None:
        """Start everything and wait until it is ready. CliError with what failed, and why. Call `stop` in any case."""
        self._keeper = self._accept_clients()
        self._token = self.folder.secret("fleet.token").read_text().strip()
        admin_key = self.folder.secret("admin.key").read_text().strip()
        for name in (ENGINE_KEY, SALT_KEY):
            self.folder.secret(name)
        self._paths = await self._make_paths()
        self._members.start()
        self._watcher.start()
        self._add_replicas(range(self.pool.spec.initial_replicas))
        self._start_routers()
        await self._until_ready()
        self._traffic.start([router.plan.url for router in self.routers], admin_key)

    async def scale(self, replicas: int) -> None:
        """Change the number of replicas. New ones warm up before they serve, deleted ones drain before they end.

        CliError for fewer replicas while one warms up, since the coldest cache is not known then, or while the
        membership file can't be written.
        """
        self._refuse_while_warming(replicas)
        async with self._scaling:
            self._refuse_while_warming(replicas)
            more = replicas - len(self.replicas)
            if more > 0:
                await self._grow(more)
            elif more < 0:
                await self._shrink(self._coldest(-more))

    def _refuse_while_warming(self, replicas: int) -> None:
        """Refuses while a replica warms. A crashed engine that waits for its restart does not count: it may never be
        ready."""
        warming = [name for name, replica in self.replicas.items() if replica.warming]
        if replicas < len(self.replicas) and warming:
            raise CliError(
                f"{', '.join(warming)} still warms up: scale down once all replicas are Ready, see: plumage status"
            )

    async def _grow(self, more: int) -> None:
        taken = {replica.plan.index for replica in self.replicas.values()}
        added = self._add_replicas([index for index in range(len(taken) + more) if index not in taken][:more])
        try:
            await self._readiness.of_replicas(added)
        except CliError:
            await asyncio.gather(*(replica.stop(_GRACE) for replica in added))
            self._forget(added)
            raise

    async def stop(self) -> None:
        """Drain and end everything, and delete the folder. `kill` meanwhile ends the draining."""
        await self._traffic.stop()
        await self._watcher.stop()
        await self._members.stop()
        if self._keeper is not None:
            self._keeper.stop_accepting()
        grace = self.pool.spec.rollout.drain_timeout_seconds + _GRACE
        await asyncio.gather(*(router.stop(grace) for router in self.routers))
        if self._keeper is not None:
            self._keeper.close()
        await asyncio.gather(*(replica.stop(_GRACE) for replica in self.replicas.values()))
        if self.directory is not None:
            await self.directory.stop()
        await self._http.aclose()
        self.folder.remove()

    def kill(self) -> None:
        """Kill all processes at once, while `stop` waits for them."""
        for child in self.children():
            child.signal(signal.SIGKILL)

    def children(self) -> list[Child]:
        """All processes but the directory's server."""
        return self.routers + [child for replica in self.replicas.values() for child in (replica.engine, replica.agent)]

    async def _make_paths(self) -> LocalPaths:
        model, weights = self.pool.spec.model, None
        if self._vllm is not None:
            if needs_weights(self.pool):
                weights = await asyncio.to_thread(write_tiny_model, self._vllm, self.folder.path / "model")
            else:
                weights = resolve(model.uri)
        tokenizer = resolve(model.tokenizer or model.uri)
        return LocalPaths(self.folder.path, tokenizer, await self._start_directory(), weights, self._vllm)

    async def _start_directory(self) -> str:
        spec = self.pool.spec.directory
        if spec.redis_ref is not None:
            return spec.redis_ref.url
        self.directory = WatchedDirectory(
            self.folder.path / "dir", int(spec.managed.max_memory), cleanup_command(self.folder.path)
        )
        await self.directory.start()
        self._report(f"directory ready (pid {self.directory.pid})")
        return self.directory.url

    def _accept_clients(self) -> ConnectionKeeper:
        loop, limits = asyncio.get_running_loop(), self.pool.spec.router.limits

        def report(line: str) -> None:
            loop.call_soon_threadsafe(self._report, line)

        listener = listen_at(*self._listen)
        return ConnectionKeeper(listener, limits.max_connections, report, routers=self._most_routers)

    def _start_routers(self) -> None:
        """Each has a port of its own too, where the supervisor asks it for its status."""
        assert self._paths is not None, "start() made them"
        assert self._keeper is not None, "start() made it"
        for number in range(self._most_routers):
            (port,) = self._free_ports(1)
            plan = plan_router(
                self.pool, self._paths, port, number=number, host=self._listen[0], api_keys=self._api_keys,
                handover_fd=self._keeper.child_descriptor(number),
            )  # fmt: skip
            self.routers.append(self._child(plan))
        for router in self.routers:
            router.start()

    def _add_replicas(self, indices: Iterable[int]) -> list[Replica]:
        assert self._paths is not None, "start() made them"
        added = [self._replica(self._paths, index) for index in indices]
        self.replicas |= {replica.plan.id: replica for replica in added}
        self._members.write()
        for replica in added:
            replica.start()
        return added

    def _forget(self, replicas: Iterable[Replica]) -> None:
        """Forget replicas that ended; their numbers and ports may be used again."""
        for replica in replicas:
            del self.replicas[replica.plan.id]
            for plan in (replica.plan.engine, replica.plan.agent):
                self.folder.forget(f"{plan.name.replace(' ', '-')}.json")
            self._ports -= {replica.plan.engine.port, replica.plan.agent.port}
        self._members.write()

    def _replica(self, paths: LocalPaths, index: int) -> Replica:
        engine_port, agent_port = self._free_ports(2)
        plan = plan_replica(self.pool, paths, index, engine_port, agent_port)
        return Replica(plan, self._child(plan.engine), self._child(plan.agent), self._http, self._members.write)

    def _child(self, plan: ProcessPlan) -> Child:
        """A process. Its settings are written before each start if the file was deleted."""
        stem = plan.name.replace(" ", "-")
        config = self.folder.write(f"{stem}.json", plan.settings)
        number = len(self.routers) if plan.role == "router" else None
        return Child(
            plan,
            config,
            ChildLog(self.folder.path / f"{stem}.log"),
            self._child_changed,
            prepare=lambda: self._prepare(f"{stem}.json", plan, number),
            fds=[] if number is None or self._keeper is None else [self._keeper.child_descriptor(number)],
        )

    def _free_ports(self, count: int) -> list[int]:
        found = free_ports(count, self._ports, start=random.SystemRandom().randrange(12_000))
        self._ports |= {*found}
        return found

    def _prepare(self, name: str, plan: ProcessPlan, router: int | None) -> None:
        """Restore the files that a process reads at its start. router: its number, for a router. CliError where a file
        can't be written."""
        self.folder.restore()
        if not (self.folder.path / name).exists():
            self.folder.write(name, plan.settings)
        if router is not None and self._keeper is not None:
            self._keeper.renew(router)

    def _child_changed(self, child: Child) -> None:
        for replica in self.replicas.values():
            if replica.engine is child:
                replica.engine_changed()
        if child in self.routers and child.pid is None and self._keeper is not None:
            self._keeper.ended(self.routers.index(child))
        if child.state is ChildState.WAITING:
            self._report(f"{child.plan.name} {child.last_exit}; restarting it")

    async def _until_ready(self) -> None:
        await self._readiness.of_replicas(list(self.replicas.values()))
        for router in self.routers:
            await self._readiness.of_router(router, lambda: bool(self.replicas))
        pids = ", ".join(str(router.pid) for router in self.routers)
        what = "router" if len(self.routers) == 1 else f"{len(self.routers)} routers"
        self._report(f"{what} ready at {self.endpoint} (pid {pids})")

    def _coldest(self, count: int) -> list[Replica]:
        """The replicas with the fewest cached tokens used; among equals the youngest."""
        used = {replica["id"]: replica["hitTokens"] for replica in self._traffic.last.get("replicas", [])}
        return sorted(self.replicas.values(), key=lambda replica: (used.get(replica.plan.id, 0), -replica.plan.index))[
            :count
        ]

    async def _shrink(self, leaving: list[Replica]) -> None:
        """Delete replicas, after the router has read that they drain: it would lose requests to them otherwise.

        CliError, without a change, when the membership file can't be written.
        """
        were = [(replica, replica.state, replica.engine.pid) for replica in leaving]
        for replica in leaving:
            replica.set_state(MemberState.DRAINING)
        if not await self._members.is_current_within(_WRITE_SECONDS):
            error = self._members.error
            for replica, state, pid in were:
                replica.set_state(state if replica.engine.pid == pid else MemberState.WARMING)
            raise CliError(f"no replica was deleted, since the router would not learn of it: {error}")
        for replica in leaving:
            self._report(f"replica {replica.plan.id} is draining")
        await asyncio.sleep(_READ_SECONDS)
        await asyncio.gather(*(self._remove(replica) for replica in leaving))

    async def _remove(self, replica: Replica) -> None:
        timeout = self.pool.spec.rollout.drain_timeout_seconds
        drained = await replica.drain(self._token, timeout)
        await replica.stop(_GRACE)
        self._forget([replica])
        self._report(
            f"replica {replica.plan.id} is deleted{'' if drained else ', before all of its requests had ended'}"
        )

    def call_each_second(self, check: Callable[[], None]) -> None:
        """Let the folder's watcher call `check` too."""
        self._watcher.also = check

    def watch_socket(self, socket: WatchedSocket) -> None:
        """Watches a socket of the folder that no child opens, so that it is restored too."""
        self._sockets.add(socket)

    def _current_sockets(self) -> list[WatchedSocket]:
        return self._sockets.current(self.directory, self.replicas.values())

    def _membership(self) -> dict[str, Any]:
        return pack_members(self.pool.metadata.name, (replica.member for replica in self.replicas.values()))

    def _silent_routers(self) -> Iterator[str]:
        """A line for each router whose process runs and does not answer: it keeps its share of the clients."""
        for router in self.routers:
            silence = self._traffic.silent_for(router.plan.url)
            if router.pid is not None and silence is not None:
                yield (
                    f"{router.plan.name} has not answered for {silence:.0f} s, and its clients wait: kill -9 "
                    f"{router.pid} has it started again"
                )

    def view(self) -> PoolView:
        """The pool for other commands."""
        return {
            "pool": self.pool.metadata.name,
            "pid": os.getpid(),
            "endpoint": self.endpoint if self.routers else None,
            "started": self.started,
            "model": self.pool.spec.model.served_name,
            "policy": self.pool.spec.router.policy,
            "eviction": self.pool.spec.engine.eviction.policy,
            "routers": [router.view for router in self.routers],
            "directory": self.directory.view if self.directory else None,
            "replicas": [replica.view for replica in self.replicas.values()],
            "traffic": self._traffic.view(directory_runs=self.directory is None or self.directory.running),
            "problems": [*self._watcher.missing_sockets, *self._silent_routers()],
        }
