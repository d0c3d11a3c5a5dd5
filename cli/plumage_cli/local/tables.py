"""The view of a local pool as text: replicas, processes, hottest prefixes, and the reasons of the last decisions.

The router's status is `traffic` in the view, and may be empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from plumage.plural import counted
from plumage_cli.local.pool_view import router_name

__all__ = [
    "last_requests",
    "percent",
    "pool_line",
    "pool_overview",
    "pool_table",
    "process_table",
    "processes",
    "shadow_line",
]

_HOTTEST = 3  # prefixes shown
_LAST = 4  # requests shown
_ON_A_LINE = 6  # replicas


def pool_overview(view: Mapping[str, Any]) -> RenderableType:
    """The replicas, the hottest prefixes and the last requests."""
    parts: list[RenderableType] = [pool_table(view)]
    hottest = ", ".join(_hottest(view))
    if hottest:
        parts.append(f"hottest prefixes: {hottest}")
    last = "\n".join(last_requests(view))
    if last:
        parts.append(f"last requests:\n{last}")
    return Group(*parts)


def pool_table(view: Mapping[str, Any]) -> Table:
    """Makes a table with a row per replica."""
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
    """Makes a table with a row per process."""
    table = Table(title="processes", title_justify="left")
    for name in ("process", "pid", "state", "restarts"):
        table.add_column(name, justify="left" if name in ("process", "state") else "right")
    for name, process in processes(view):
        table.add_row(name, _shown(process["pid"]), process["state"], str(process["restarts"] or ""))
    return table


def processes(view: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each process that the pool runs, with its name. An external directory is not among them."""
    for number, router in enumerate(view["routers"]):
        yield router_name(number), router
    if view["directory"]:
        yield "directory", view["directory"]
    for replica in view["replicas"]:
        for role in ("engine", "agent"):
            yield f"{role} {replica['id']}", replica[role]


def pool_line(view: Mapping[str, Any]) -> str:
    """The pool in one line, for output that is no terminal.

    Replicas that are not Ready come first if there are many.
    """
    rows = list(_rows(view))
    if len(rows) > _ON_A_LINE:
        rows.sort(key=lambda row: _state(*row) == "Ready")
    parts = [f"{replica['id']} {_summary(replica, traffic)}" for replica, traffic in rows[:_ON_A_LINE]]
    if len(rows) > _ON_A_LINE:
        parts.append(f"and {len(rows) - _ON_A_LINE} more")
    hottest = next(_hottest(view), None)
    return " | ".join(parts) + (f" | hottest {hottest}" if hottest else "")


def last_requests(view: Mapping[str, Any], count: int = _LAST) -> Iterator[str]:
    """The replica and the reason of the last requests, newest first."""
    for decision in _traffic(view).get("decisions", [])[:count]:
        yield f"  {decision['requestId'][:24]} → {decision['replica']}: {decision['why']}"


def shadow_line(view: Mapping[str, Any]) -> str | None:
    """What the shadow policy would have changed; None without one or before its first decision."""
    shadow = _traffic(view).get("shadow")
    if not shadow or not (decisions := shadow["same"] + shadow["other"]):
        return None
    tokens, busiest = shadow["promptTokens"] or 1, shadow["busiestShare"]
    cached = {who: percent(count / tokens) for who, count in shadow["hitTokens"].items()}
    return (
        f"shadow policy {shadow['policy']}: another replica for {percent(shadow['other'] / decisions)} of "
        f"{counted(decisions, 'request')}; cached {cached['shadow']} of their tokens instead of {cached['policy']}; "
        f"busiest replica {percent(busiest['shadow'])} of requests instead of {percent(busiest['policy'])}"
        + (f"; {counted(shadow['errors'], 'error')}, see the router's log" if shadow["errors"] else "")
    )


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _rows(view: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each replica with its entry in the router's status."""
    status = {replica["id"]: replica for replica in _traffic(view).get("replicas", [])}
    for replica in view["replicas"]:
        yield replica, status.get(replica["id"], {})


def _traffic(view: Mapping[str, Any]) -> Mapping[str, Any]:
    return view.get("traffic") or {}


def _summary(replica: Mapping[str, Any], traffic: Mapping[str, Any]) -> str:
    load = f"{_shown(traffic.get('running'))}+{_shown(traffic.get('waiting'))}"
    return f"{_state(replica, traffic)} {load} hit {percent(traffic.get('hitRatio'))}"


def _state(replica: Mapping[str, Any], traffic: Mapping[str, Any]) -> str:
    """The router's state of the replica, else the supervisor's: the router knows more."""
    return str(traffic.get("state", replica["state"]))


def _hottest(view: Mapping[str, Any]) -> Iterator[str]:
    """Prefixes by their hashes only: their content is private to the clients."""
    for prefix in _traffic(view).get("hottest", [])[:_HOTTEST]:
        tokens = f"{prefix['tokens']} tokens, " if prefix["tokens"] else ""
        yield f"{prefix['chunk'][:8]}… ({tokens}{prefix['count']}×)"


def _shown(value: int | None) -> str:
    return "–" if value is None else str(value)
