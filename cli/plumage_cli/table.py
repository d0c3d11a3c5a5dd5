"""A pool as tables: what each replica does, the hottest prefixes, why the last requests went where they went.

Reads the supervisor's view (processes, states) and in it the router's status (`traffic`), which may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

__all__ = ["last_requests", "line", "percent", "pool_picture", "pool_table", "process_table", "processes"]

_HOTTEST = 3  # prefixes shown
_LAST = 4  # requests shown
_ON_A_LINE = 6  # replicas


def pool_picture(view: Mapping[str, Any]) -> RenderableType:
    """Everything."""
    parts: list[RenderableType] = [pool_table(view)]
    hottest = ", ".join(_hottest(view))
    if hottest:
        parts.append(f"hottest prefixes: {hottest}")
    last = "\n".join(last_requests(view))
    if last:
        parts.append(f"last requests:\n{last}")
    return Group(*parts)


def pool_table(view: Mapping[str, Any]) -> Table:
    """One row a replica."""
    table = Table(title=f"{view['pool']}: {view['policy']} routing, {view['eviction']} eviction", title_justify="left")
    for name in ("replica", "state", "requests", "running", "waiting", "KV", "hit ratio", "restarts"):
        table.add_column(name, justify="left" if name in ("replica", "state") else "right")
    for replica, traffic in _rows(view):
        restarts = replica["engine"]["restarts"] + replica["agent"]["restarts"]
        table.add_row(
            replica["id"],
            _state(replica, traffic),
            _shown(traffic.get("routed")),
            _shown(traffic.get("running")),
            _shown(traffic.get("waiting")),
            percent(traffic.get("kvUsage")),
            percent(traffic.get("hitRatio")),
            str(restarts) if restarts else "",
        )
    return table


def process_table(view: Mapping[str, Any]) -> Table:
    """One row a process."""
    table = Table(title="processes", title_justify="left")
    for name in ("process", "pid", "state", "restarts"):
        table.add_column(name, justify="left" if name in ("process", "state") else "right")
    for name, process in processes(view):
        table.add_row(name, _shown(process["pid"]), process["state"], str(process["restarts"] or ""))
    return table


def processes(view: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each process of the pool that there is, by name; a directory of somebody else's is none."""
    for role in ("router", "directory"):
        if view[role]:
            yield role, view[role]
    for replica in view["replicas"]:
        for role in ("engine", "agent"):
            yield f"{role} {replica['id']}", replica[role]


def line(view: Mapping[str, Any]) -> str:
    """The same in one line, for output that is no terminal. Of many replicas those that are not Ready come first."""
    rows = list(_rows(view))
    if len(rows) > _ON_A_LINE:
        rows.sort(key=lambda row: _state(*row) == "Ready")
    parts = [f"{replica['id']} {_summary(replica, traffic)}" for replica, traffic in rows[:_ON_A_LINE]]
    if len(rows) > _ON_A_LINE:
        parts.append(f"and {len(rows) - _ON_A_LINE} more")
    hottest = next(_hottest(view), None)
    return " | ".join(parts) + (f" | hottest {hottest}" if hottest else "")


def last_requests(view: Mapping[str, Any], count: int = _LAST) -> Iterator[str]:
    """Why the last requests went where they went, newest first."""
    for decision in _traffic(view).get("decisions", [])[:count]:
        yield f"  {decision['requestId'][:24]} → {decision['replica']}: {decision['why']}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _rows(view: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each replica with what the router says of it."""
    said = {replica["id"]: replica for replica in _traffic(view).get("replicas", [])}
    for replica in view["replicas"]:
        yield replica, said.get(replica["id"], {})


def _traffic(view: Mapping[str, Any]) -> Mapping[str, Any]:
    return view.get("traffic") or {}


def _summary(replica: Mapping[str, Any], traffic: Mapping[str, Any]) -> str:
    load = f"{_shown(traffic.get('running'))}+{_shown(traffic.get('waiting'))}"
    return f"{_state(replica, traffic)} {load} hit {percent(traffic.get('hitRatio'))}"


def _state(replica: Mapping[str, Any], traffic: Mapping[str, Any]) -> str:
    """The router's word where it has one: it sees more than the supervisor."""
    return str(traffic.get("state", replica["state"]))


def _hottest(view: Mapping[str, Any]) -> Iterator[str]:
    """Hashes only: what a prefix says is the clients' business."""
    for prefix in _traffic(view).get("hottest", [])[:_HOTTEST]:
        tokens = f"{prefix['tokens']} tokens, " if prefix["tokens"] else ""
        yield f"{prefix['chunk'][:8]}… ({tokens}{prefix['count']}×)"


def _shown(value: int | None) -> str:
    return "–" if value is None else str(value)
