"""Pools and gateways of a cluster as tables, from the status that the operator wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plumage.cluster import COMPONENT_LABEL, CORDON
from plumage.lost_pods import is_lost
from plumage_cli.cluster.custom_resources import condition, is_paused

__all__ = ["age", "gateway_details", "gateways_table", "pool_details", "pools_table"]

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"))
_RIGHT = ("replicas", "hit ratio", "age")


def pools_table(pools: Sequence[Mapping[str, Any]], now: datetime, everywhere: bool) -> Table:
    """Makes a table with a row per pool. now: with a time zone."""
    first = ("namespace",) if everywhere else ()
    table = _plain(*first, "pool", "ready", "replicas", "hit ratio", "model", "reason", "age")
    for pool in pools:
        status = pool.get("status") or {}
        own = (_percent(status.get("hitRatioPercent")), str(status.get("model") or pool["spec"]["model"]["uri"]))
        table.add_row(*_row(pool, status.get("desiredReplicas", "–"), own, now, everywhere))
    return table


def gateways_table(gateways: Sequence[Mapping[str, Any]], now: datetime, everywhere: bool) -> Table:
    """Makes a table with a row per gateway. now: with a time zone."""
    first = ("namespace",) if everywhere else ()
    table = _plain(*first, "gateway", "ready", "replicas", "pools", "reason", "age")
    for gateway in gateways:
        own = (", ".join((gateway.get("status") or {}).get("pools") or []) or "–",)
        table.add_row(*_row(gateway, gateway["spec"].get("replicas", "–"), own, now, everywhere))
    return table


def _row(
    thing: Mapping[str, Any], wanted: int | str, own: Sequence[str], now: datetime, everywhere: bool
) -> Iterator[Text]:
    """The cells of a pool or a gateway. wanted: replicas. own: the columns that only its kind has."""
    meta, status = thing["metadata"], thing.get("status") or {}
    ready = condition(thing, "Ready") or {}
    cells = (
        *((meta["namespace"],) if everywhere else ()),
        meta["name"],
        str(ready.get("status", "Unknown")),
        f"{status.get('readyReplicas', 0)}/{wanted}",
        *own,
        "Paused" if is_paused(thing) else str(ready.get("reason", "NotSeen")),
        age(str(meta.get("creationTimestamp", "")), now),
    )
    return map(Text, cells)


def pool_details(pool: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], now: datetime) -> RenderableType:
    """Describes one pool: address, conditions, pods, adapters, and the autoscaler's last decision."""
    status = pool.get("status") or {}
    parts: list[RenderableType] = [pools_table([pool], now, everywhere=True)]
    if status.get("address"):
        parts.append(Text(f"\naddress: {status['address']}"))
    parts += ["", _conditions(pool, now), "", _pods(pods, now)]
    if adapters := status.get("adapters"):
        parts += ["", _adapters(adapters, status)]
    decision = (status.get("autoscaling") or {}).get("decision")
    if decision:
        parts.append(Text(f"\nautoscaling: {decision}"))
    return Group(*parts)


def gateway_details(gateway: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], now: datetime) -> RenderableType:
    """Describes one gateway: addresses, conditions and pods."""
    parts: list[RenderableType] = [gateways_table([gateway], now, everywhere=True)]
    if addresses := (gateway.get("status") or {}).get("addresses"):
        parts.append(Text(f"\naddress: {', '.join(f'{address}/v1' for address in addresses)}"))
    return Group(*parts, "", _conditions(gateway, now), "", _pods(pods, now))


def _conditions(pool: Mapping[str, Any], now: datetime) -> Table:
    table = _plain("condition", "status", "reason", "since", "message")
    for one in (pool.get("status") or {}).get("conditions") or []:
        since = age(str(one.get("lastTransitionTime", "")), now)
        table.add_row(*map(Text, (one["type"], one["status"], one.get("reason", ""), since, one.get("message", ""))))
    return table


def _adapters(adapters: Sequence[Mapping[str, Any]], status: Mapping[str, Any]) -> Table:
    """Makes a table with a row per LoRA adapter. replicas: of the ready ones, those that serve it."""
    table = _plain("adapter", "replicas", "message")
    for one in adapters:
        replicas = f"{one.get('replicas', 0)}/{status.get('readyReplicas', 0)}"
        table.add_row(*map(Text, (one["name"], replicas, one.get("message", ""))))
    return table


def _pods(pods: Sequence[Mapping[str, Any]], now: datetime) -> Table:
    table = _plain("pod", "component", "ready", "state", "restarts", "node", "age")
    for pod in pods:
        meta, spec = pod["metadata"], pod.get("spec") or {}
        containers = list(_containers(pod))
        ready = f"{sum(bool(one.get('ready')) for one in containers)}/{len(containers)}"
        restarts = sum(int(one.get("restartCount", 0)) for one in containers)
        component = (meta.get("labels") or {}).get(COMPONENT_LABEL, "")
        born = age(str(meta.get("creationTimestamp", "")), now)
        cells = (meta["name"], component, ready, _state(pod), str(restarts or ""), spec.get("nodeName", "–"), born)
        table.add_row(*map(Text, cells))
    return table


def _state(pod: Mapping[str, Any]) -> str:
    """NodeLost, Draining, the reason that a container waits, or the phase; with a note when the pod is cordoned."""
    meta = pod["metadata"]
    if is_lost(pod):
        return "NodeLost"
    if meta.get("deletionTimestamp"):
        return "Draining"
    waiting = [one.get("state", {}).get("waiting", {}).get("reason") for one in _containers(pod)]
    cause = next((reason for reason in waiting if reason), None)
    state = str(cause or (pod.get("status") or {}).get("phase", "Unknown"))
    cordoned = str((meta.get("annotations") or {}).get(CORDON, "")).lower() == "true"
    return f"{state}, cordoned" if cordoned else state


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The status of the containers, and of the init containers that are sidecars."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    sidecars = {one["name"] for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"}
    yield from (one for one in status.get("initContainerStatuses") or [] if one["name"] in sidecars)
    yield from status.get("containerStatuses") or []


def _plain(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
    return table


def _percent(value: int | None) -> str:
    return "–" if value is None else f"{value} %"


def age(timestamp: str, now: datetime) -> str:
    """The age of an RFC 3339 time in its largest unit, as kubectl shows it."""
    try:
        seconds = int((now - datetime.fromisoformat(timestamp)).total_seconds())
    except (ValueError, TypeError):
        return "–"
    return next((f"{seconds // size}{unit}" for size, unit in _UNITS if seconds >= size), f"{max(seconds, 0)}s")
