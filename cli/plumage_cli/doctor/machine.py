"""Checks of this machine and of its running pools."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plumage.api.v1alpha1.router import RouterLimits
from plumage.errors import PlumageError
from plumage.open_files import files_of_router
from plumage.plural import counted
from plumage_cli.doctor.finding import Finding, Verdict
from plumage_cli.errors import how_to_install
from plumage_cli.local.folder.pool_folder import MIN_FREE_BYTES, base_folder, stale_pools
from plumage_cli.local.plan.paths import HOST
from plumage_cli.local.processes.ports import require_free
from plumage_cli.local.tables import processes
from plumage_cli.requirements import BENCHMARKS, MODULES

__all__ = ["check_machine", "check_pool"]

_CORES = 2
_WORTH_A_FINDING = 0.02  # of all prompt tokens
_ANY_PREFIX_REMEDY = "append to the prompt instead of changing its beginning"
_PREFIX_REMEDIES = {  # by the causes of the router's `prefixLostTokens`
    "DateOrNumber": "move the date or counter to the last message, or round it to a day",
    "Identifier": "move the id to the last message, or keep one for the whole conversation",
    "Order": "send tools and the keys of objects in one fixed order, or set spec.router.sortTools",
    "HistoryTrimmed": "remove old messages rarely, and many at once",
    "Removed": "edit messages rarely; change nothing if the model's template drops earlier thoughts",
}


def check_machine(port: int, pools: Iterable[Mapping[str, Any]] = ()) -> Iterator[Finding]:
    """Whether `plumage up` can work here. pools: the views of the running pools."""
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
    """What is wrong with a running pool, from its supervisor's view. folder: the pool's, with the logs."""
    traffic = view.get("traffic") or {}
    pool = view["pool"]
    yield Finding(Verdict.GOOD, f"pool {pool} is running at {view['endpoint']}")
    for replica in view["replicas"]:
        if replica["state"] == "Warming":
            yield Finding(
                Verdict.WARNING, f"{replica['id']} is warming up", "wait; plumage status shows when it is Ready"
            )
    if not view["replicas"]:
        yield Finding(Verdict.WARNING, f"pool {pool} has no replica", "plumage scale 1")
    for problem in view["problems"]:
        yield Finding(Verdict.WARNING, problem)
    for name, process in processes(view):
        yield from _process(name, process, folder)
    if traffic.get("directory") == "Degraded":
        yield Finding(
            Verdict.WARNING, "the router works without the directory", "it recovers once the directory is back"
        )
    if traffic.get("membershipError"):
        yield Finding(Verdict.BAD, f"the membership file: {traffic['membershipError']}", "free some disk space")
    yield from _lost_prefixes(traffic.get("totals") or {})
    replicas = traffic.get("replicas", [])
    if replicas and all(one.get("why") and one["state"] != "Warming" for one in replicas):
        yield Finding(Verdict.BAD, f"no replica of pool {pool} can take requests", "the next lines say why")
    for replica in replicas:
        if replica.get("why"):
            yield Finding(
                Verdict.WARNING,
                f"{replica['id']} gets no requests: {replica['why']}",
                _see(folder, f"engine {replica['id']}"),
            )


def _lost_prefixes(totals: Mapping[str, Any]) -> Iterator[Finding]:
    """What clients change at the beginning of their prompts, where that costs much of what they send."""
    prompts = totals.get("promptTokens") or 0
    for cause, tokens in (totals.get("prefixLostTokens") or {}).items():
        if tokens >= _WORTH_A_FINDING * prompts > 0:
            yield Finding(
                Verdict.WARNING,
                f"clients change early bytes of their prompts ({cause}): {tokens:,} of {prompts:,} prompt tokens were "
                "computed again",
                _PREFIX_REMEDIES.get(cause, _ANY_PREFIX_REMEDY),
            )


def _process(name: str, process: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    """Whether a process is down or was restarted, and how it ended last."""
    role, _, replica = name.partition(" ")
    who = f"the {role} of {replica}" if replica else f"the {role}"
    if role == "router" and replica:
        who = name  # the number is the router's own
    how = f": it {process['lastExit']}" if process.get("lastExit") else ""
    # The directory's log is deleted with its server.
    remedy = "check whether memory ran out" if role == "directory" else _see(folder, name)
    if process["state"] == "Waiting":
        if role == "agent":
            remedy = f"the replica still serves, but its cache is not in the directory; {remedy}"
        verdict = Verdict.BAD if role == "router" else Verdict.WARNING
        yield Finding(verdict, f"{who} is down, {counted(process['restarts'], 'time')} so far{how}", remedy)
    elif process["restarts"]:
        yield Finding(Verdict.WARNING, f"{who} was restarted {counted(process['restarts'], 'time')}{how}", remedy)


def _see(folder: Path, process: str) -> str:
    return f"see {folder / process.replace(' ', '-')}.log"


def _modules() -> Iterator[Finding]:
    for purpose, names in MODULES.items():
        if purpose == BENCHMARKS and find_spec("plumage_bench") is None:
            continue  # the package does not contain them
        missing = [name for name in names if find_spec(name) is None]
        if missing:
            extra = "bench" if purpose == BENCHMARKS else "demo"
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
    return Finding(Verdict.GOOD, f"state is kept in {base}, {free // 2**20:,} MiB free")


def _stale() -> Iterator[Finding]:
    try:
        pools = stale_pools()
    except PlumageError:  # the check of the running pools reports it
        return
    for pool in pools:
        yield Finding(Verdict.WARNING, f"pool {pool} left its folder behind", "the next plumage up deletes it")


def _port(port: int, routers: Mapping[int | None, str]) -> Finding:
    if port in routers:
        return Finding(Verdict.GOOD, f"port {port} is used by the router of pool {routers[port]}")
    try:
        require_free(HOST, port)
    except PlumageError as error:
        return Finding(Verdict.WARNING, str(error))
    return Finding(Verdict.GOOD, f"port {port} is free")


def _files() -> Finding:
    """The router raises its soft limit to the hard limit. Only an administrator can raise the hard limit."""
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
        return Finding(Verdict.WARNING, f"{cores} core", "four simulated engines need two; use --set spec.replicas=2")
    return Finding(Verdict.GOOD, f"{cores} cores")


def _death_signal() -> Finding:
    if platform.system() == "Linux":
        return Finding(Verdict.GOOD, "the pool's processes end with plumage up, also after kill -9")
    return Finding(Verdict.WARNING, "the pool's processes end within a second after plumage up was killed", "")
