"""Waits until a pool's processes are ready, and reports each replica that is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import httpx

from plumage.membership import MemberState
from plumage_cli.errors import CliError, ProcessFailedError
from plumage_cli.local.pool.replica import Replica
from plumage_cli.local.processes.child import Child

__all__ = ["Readiness"]

_INTERVAL = 0.05  # seconds between two checks
_MAX_CRASHES = 4  # in a row during a start, after which the start fails


class Readiness:
    """report: gets a line for each replica that became ready."""

    def __init__(self, http: httpx.AsyncClient, report: Callable[[str], None]) -> None:
        self._http = http
        self._report = report

    async def of_replicas(self, replicas: Sequence[Replica]) -> None:
        """Wait until all are ready. ProcessFailedError if one cannot become ready, or not in time."""
        reported: set[str] = set()
        deadline = time.monotonic() + max((replica.plan.agent.ready_seconds for replica in replicas), default=1.0)
        while not all(replica.state is MemberState.READY for replica in replicas):
            for child in (child for replica in replicas for child in (replica.engine, replica.agent)):
                _fail_if_hopeless(child)
            self._report_ready(replicas, reported)
            if time.monotonic() > deadline:
                late = next(replica for replica in replicas if replica.state is not MemberState.READY)
                raise _not_ready(late.engine)
            await asyncio.sleep(_INTERVAL)
        self._report_ready(replicas, reported)

    async def of_router(self, child: Child, has_replicas: Callable[[], bool]) -> None:
        """Wait until the router answers. ProcessFailedError as `of_replicas`."""
        deadline = time.monotonic() + child.plan.ready_seconds
        while time.monotonic() < deadline:
            _fail_if_hopeless(child)
            try:
                status = (await self._http.get(child.plan.ready, timeout=2.0)).status_code
                if status == 200 or not has_replicas():  # a router without replicas works and answers 503
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(_INTERVAL)
        raise _not_ready(child)

    def _report_ready(self, replicas: Sequence[Replica], reported: set[str]) -> None:
        for replica in replicas:
            if replica.state is MemberState.READY and replica.plan.id not in reported:
                reported.add(replica.plan.id)
                without = (
                    "; its agent does not answer, so its cache is not in the directory" if replica.without_agent else ""
                )
                self._report(f"replica {replica.plan.id} ready (engine pid {replica.engine.pid}){without}")


def _fail_if_hopeless(child: Child) -> None:
    if child.refused:  # a restart would not help
        raise ProcessFailedError(f"{child.plan.name} can't run with its settings:\n{child.log.last_lines()}")
    if child.crashes >= _MAX_CRASHES:
        raise ProcessFailedError(
            f"{child.plan.name} {child.last_exit}, {child.crashes} times in a row:\n{child.log.last_lines()}"
        )


def _not_ready(child: Child) -> CliError:
    return ProcessFailedError(
        f"{child.plan.name} was not ready within {child.plan.ready_seconds:g} s; its last lines:\n"
        f"{child.log.last_lines()}"
    )
