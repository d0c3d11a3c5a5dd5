"""A Service's EndpointSlices → the members of its pool. Pure.

Contract: an endpoint that terminates is Draining, one that serves is Ready, all others are Warming. `ready` is not
asked where `serving` is set: behind a Service with `publishNotReadyAddresses`, as a pool's is, every endpoint is called
ready (endpointslice/utils.go, podToEndpoint). A replica's id is its pod's name. An endpoint may stand in two slices
while it moves between them, and a dual-stack pod in one of each family. The further state wins, since an end is never
taken back, and IPv4 before IPv6. The pods of one slice have the same ports, and an engine's is called `https` where it
serves TLS: while a rollout adds or removes it, the pool has both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from plumage.cluster import AGENT_PORT, ENGINE_PORT
from plumage.membership import Member, MemberState

__all__ = ["AGENT_PORT_NAME", "ENGINE_PORT_NAME", "ENGINE_TLS_PORT_NAME", "SERVICE_LABEL", "members_of"]

SERVICE_LABEL: Final = "kubernetes.io/service-name"
ENGINE_PORT_NAME: Final = "http"
ENGINE_TLS_PORT_NAME: Final = "https"
AGENT_PORT_NAME: Final = "agent"
_RANK: Final = {MemberState.WARMING: 0, MemberState.READY: 1, MemberState.DRAINING: 2}
_FAMILIES: Final = ("IPv4", "IPv6")


def members_of(slices: Iterable[Mapping[str, Any]], cordoned: Collection[str] = ()) -> list[Member]:
    """All members, sorted by id. cordoned: ids of those that get no new request while they would be Ready."""
    found: dict[str, tuple[str, Member]] = {}
    for family, member in _all(slices):
        known = found.get(member.id)
        if known is None or _before((family, member), known):
            found[member.id] = (family, member)
    members = (member for _, (_, member) in sorted(found.items()))
    return [_cordoned(member) if member.id in cordoned else member for member in members]


def _before(one: tuple[str, Member], other: tuple[str, Member]) -> bool:
    if one[0] != other[0]:
        return _FAMILIES.index(one[0]) < _FAMILIES.index(other[0])
    return _RANK[one[1].state] > _RANK[other[1].state]


def _cordoned(member: Member) -> Member:
    return replace(member, state=MemberState.CORDONED) if member.state is MemberState.READY else member


def _all(slices: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Member]]:
    for one in slices:
        family = one.get("addressType")
        if family not in _FAMILIES:  # FQDN: deprecated, and no pod's
            continue
        ports = {port.get("name"): port.get("port") for port in one.get("ports") or ()}
        agent = ports.get(AGENT_PORT_NAME) or AGENT_PORT
        scheme = "https" if ports.get(ENGINE_TLS_PORT_NAME) else "http"
        engine = ports.get(ENGINE_TLS_PORT_NAME) or ports.get(ENGINE_PORT_NAME) or ENGINE_PORT
        for endpoint in one.get("endpoints") or ():
            addresses = endpoint.get("addresses") or ()
            if addresses:
                yield family, _member(endpoint, addresses[0], f"{scheme}://", engine, agent)


def _member(endpoint: Mapping[str, Any], address: str, scheme: str, engine: int, agent: int) -> Member:
    host = f"[{address}]" if ":" in address else address
    pod = (endpoint.get("targetRef") or {}).get("name")
    return Member(pod or address, f"{scheme}{host}:{engine}", f"http://{host}:{agent}", _state(endpoint))


def _state(endpoint: Mapping[str, Any]) -> MemberState:
    conditions = endpoint.get("conditions") or {}
    if conditions.get("terminating"):
        return MemberState.DRAINING
    serving = conditions.get("serving")
    if serving is None:  # absent means: as `ready`, and `ready` absent means true
        serving = conditions.get("ready") is not False
    return MemberState.READY if serving else MemberState.WARMING
