"""What `plumage doctor` looks at: this machine, and the pools that are up. Each check says what to do about it."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plumage.api.v1alpha1.router import RouterLimits
from plumage.errors import PlumageError
from plumage.open_files import files_of_router
from plumage.plural import counted
from plumage_cli.errors import how_to_install
from plumage_cli.local.folder import MIN_FREE_BYTES, base_folder, stale_pools
from plumage_cli.local.plan import HOST
from plumage_cli.local.ports import require_free
from plumage_cli.table import processes

__all__ = ["MODULES", "Finding", "Verdict", "check_machine", "check_pool", "require"]

_BENCHMARKS = "benchmarks"
MODULES = {
    "the router": ("fastapi", "uvloop", "httptools", "orjson"),
    "engines and agents": ("zmq", "starlette", "uvicorn", "httpx", "tokenizers"),
    "the demo": ("openai",),
    _BENCHMARKS: ("numpy", "matplotlib"),
}
_CORES = 2


class Verdict(Enum):
    GOOD = "ok"
    WARNING = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `remedy` says what to do when it is not good."""

    verdict: Verdict
    what: str
    remedy: str = ""


def require(*purposes: str) -> None:
    """ModuleNotFoundError when a package of theirs is missing: better now than from a process of the pool, later."""
    for name in (name for purpose in purposes for name in MODULES[purpose]):
        if find_spec(name) is None:
            raise ModuleNotFoundError(name=name)


def check_machine(port: int, pools: Iterable[Mapping[str, Any]] = ()) -> Iterator[Finding]:
    """Whether `plumage up` can work here. `pools`: the views of those that are up."""
    yield Finding(Verdict.GOOD, f"Python {platform.python_version()}")
    yield from _modules()
    yield _server()
    yield _folder()
    yield _port(port, {urlsplit(view["endpoint"] or "").port: view["pool"] for view in pools})
    yield _files()
    yield _cores()
    yield _death_signal()
    yield from _stale()


def check_pool(view: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    """What is wrong with a pool that is up, from its supervisor's view. `folder`: the pool's, where the logs lie."""
    traffic = view.get("traffic") or {}
    pool = view["pool"]
    yield Finding(Verdict.GOOD, f"pool {pool} is up at {view['endpoint']}")
    for replica in view["replicas"]:
        if replica["state"] == "Warming":
            yield Finding(Verdict.WARNING, f"{replica['id']} is warming", "wait; plumage status shows when it is Ready")
    if not view["replicas"]:
        yield Finding(Verdict.WARNING, f"pool {pool} has no replica", "plumage scale 1")
    for name, process in processes(view):
        yield from _process(name, process, folder)
    if traffic.get("directory") == "Degraded":
        yield Finding(
            Verdict.WARNING, "the router does without the directory", "it recovers by itself once that is back"
        )
    if traffic.get("membershipError"):
        yield Finding(Verdict.BAD, f"the membership file: {traffic['membershipError']}", "free some disk space")
    for replica in traffic.get("replicas", []):
        if replica.get("why"):
            yield Finding(
                Verdict.WARNING,
                f"{replica['id']} gets no requests: {replica['why']}",
                _see(folder, f"engine {replica['id']}"),
            )


def _process(name: str, process: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    """Whether it is down, or was: how often, and how it ended last (of the directory's server nobody knows)."""
    role, _, replica = name.partition(" ")
    who = f"the {role} of {replica}" if replica else f"the {role}"
    how = f": it {process['lastExit']}" if process.get("lastExit") else ""
    # The directory's log goes with its server.
    remedy = "see whether memory ran out" if role == "directory" else _see(folder, name)
    if process["state"] == "Waiting":
        if role == "agent":
            remedy = f"the replica serves on; nobody knows its cache; {remedy}"
        verdict = Verdict.BAD if role == "router" else Verdict.WARNING
        yield Finding(verdict, f"{who} is down, {counted(process['restarts'], 'time')} by now{how}", remedy)
    elif process["restarts"]:
        yield Finding(Verdict.WARNING, f"{who} was started again {counted(process['restarts'], 'time')}{how}", remedy)


def _see(folder: Path, process: str) -> str:
    return f"see {folder / process.replace(' ', '-')}.log"


def _modules() -> Iterator[Finding]:
    for purpose, names in MODULES.items():
        if purpose == _BENCHMARKS and find_spec("plumage_bench") is None:
            continue  # they are not in the package
        missing = [name for name in names if find_spec(name) is None]
        if missing:
            extra = "bench" if purpose == _BENCHMARKS else "demo"
            yield Finding(Verdict.BAD, f"missing for {purpose}: {', '.join(missing)}", how_to_install(extra))
        else:
            yield Finding(Verdict.GOOD, f"installed for {purpose}: {', '.join(names)}")


def _server() -> Finding:
    from plumage.directory.server.local_server import find_server

    try:
        return Finding(Verdict.GOOD, f"the directory's server is {find_server()}")
    except PlumageError as error:
        return Finding(Verdict.BAD, "no directory server", str(error))


def _folder() -> Finding:
    try:
        base = base_folder()
    except PlumageError as error:
        return Finding(Verdict.BAD, "no folder for state", str(error))
    free = shutil.disk_usage(base).free
    if free < MIN_FREE_BYTES:
        return Finding(
            Verdict.BAD, f"{free // 2**20} MiB free at {base}", "free some, or set XDG_RUNTIME_DIR elsewhere"
        )
    return Finding(Verdict.GOOD, f"state goes to {base}, {free // 2**20:,} MiB free")


def _stale() -> Iterator[Finding]:
    try:
        pools = stale_pools()
    except PlumageError:  # told by who asks for the pools that are up
        return
    for pool in pools:
        yield Finding(Verdict.WARNING, f"pool {pool} left its folder behind", "the next plumage up removes it")


def _port(port: int, routers: Mapping[int | None, str]) -> Finding:
    if port in routers:
        return Finding(Verdict.GOOD, f"port {port} is that of pool {routers[port]}'s router")
    try:
        require_free(HOST, port)
    except PlumageError as error:
        return Finding(Verdict.WARNING, str(error))
    return Finding(Verdict.GOOD, f"port {port} is free")


def _files() -> Finding:
    """The router raises its soft limit as far as the hard one, which nobody else can."""
    limits = RouterLimits()
    wanted = files_of_router(limits.max_connections, limits.max_in_flight)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return Finding(Verdict.GOOD, f"the {wanted:,} open files that a router may need are allowed")
    what = (
        f"at most {hard:,} open files are allowed, {wanted:,} may be needed with {limits.max_connections:,} connections"
    )
    return Finding(Verdict.WARNING, what, "raise the hard limit (ulimit -Hn), or lower spec.router.limits")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < _CORES:
        return Finding(Verdict.WARNING, f"{cores} core", "four simulated engines want two; use --set spec.replicas=2")
    return Finding(Verdict.GOOD, f"{cores} cores")


def _death_signal() -> Finding:
    if platform.system() == "Linux":
        return Finding(Verdict.GOOD, "children end with plumage up, also after kill -9")
    return Finding(Verdict.WARNING, "children notice a lost plumage up within a second", "")
