"""The sockets in a pool's folder that its watcher restores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from plumage_cli.local.folder.pool_folder import CONTROL_SOCKET
from plumage_cli.local.folder.watcher import WatchedSocket
from plumage_cli.local.pool.replica import Replica
from plumage_cli.local.processes.child import Child
from plumage_cli.local.processes.directory_server import WatchedDirectory

__all__ = ["PoolSockets"]


class PoolSockets:
    """The sockets of a pool: the control socket, the directory's, and two for the events of each engine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, WatchedSocket] = {}

    def add(self, socket: WatchedSocket) -> None:
        """Watch the control socket too."""
        self._known[socket.path] = socket

    def current(self, directory: WatchedDirectory | None, replicas: Iterable[Replica]) -> list[WatchedSocket]:
        """The sockets that exist now.

        A socket stays the same object from call to call, with the present owner and effect. A restarted engine has
        another pid.
        """
        wanted = {path: one for path, one in self._known.items() if path.name == CONTROL_SOCKET}
        for one in (*_directory_socket(directory), *self._event_sockets(replicas)):
            known = wanted[one.path] = self._known.get(one.path, one)
            known.owner, known.effect = one.owner, one.effect
        self._known = wanted
        return list(wanted.values())

    def _event_sockets(self, replicas: Iterable[Replica]) -> Iterator[WatchedSocket]:
        for replica in replicas:
            for name in ("events", "replay"):
                yield WatchedSocket(
                    self._folder / f"{name}-{replica.plan.index}",
                    partial(_pid, replica.engine),
                    f"an agent of {replica.plan.id} that restarts will not learn what its engine caches; end the "
                    f"engine (pid {replica.engine.pid}) while few requests run, and it is restarted",
                )


def _directory_socket(directory: WatchedDirectory | None) -> list[WatchedSocket]:
    if directory is None:
        return []
    effect = "agents and routers that start can't reach the directory"
    return [WatchedSocket(directory.socket, partial(_server_pid, directory), effect, directory.restart)]


def _server_pid(directory: WatchedDirectory) -> int | None:
    return directory.pid if directory.running else None


def _pid(child: Child) -> int | None:
    return child.pid
