"""The parts of a pool's view: its processes and replicas."""

from __future__ import annotations

from plumage_cli.local.pool.replica import Replica
from plumage_cli.local.pool_view import ChildView, DirectoryView, ReplicaView
from plumage_cli.local.processes.child import Child, ChildState
from plumage_cli.local.processes.directory_server import WatchedDirectory

__all__ = ["child_view", "directory_view", "replica_view"]


def replica_view(replica: Replica) -> ReplicaView:
    return {
        "id": replica.plan.id,
        "state": replica.state.value,
        "url": replica.plan.engine.url,
        "agentUrl": replica.plan.agent.url,
        "engine": child_view(replica.engine),
        "agent": child_view(replica.agent),
    }


def directory_view(directory: WatchedDirectory) -> DirectoryView:
    state = ChildState.RUNNING if directory.running else ChildState.WAITING
    return {
        "pid": directory.pid,
        "state": state.value,
        "restarts": directory.restarts,
        "lastExit": directory.last_exit,
        "replaced": directory.replaced,
    }


def child_view(child: Child) -> ChildView:
    return {"pid": child.pid, "state": child.state.value, "restarts": child.restarts, "lastExit": child.last_exit}
