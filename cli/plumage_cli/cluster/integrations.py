"""Ingresses, HTTPRoutes and PodMonitors that pools ask for: whether the cluster knows the kind, and whether the
operator may write it. Of a kind that no pool asks for nothing is said but what was made before and no operator may
remove: it leads to its pool still."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from plumage.cluster import OURS_SELECTOR, pool_of
from plumage_cli.checks import Finding, Verdict
from plumage_cli.cluster.client import ApiError, Cluster
from plumage_cli.cluster.operators import operators, user_of, words
from plumage_cli.cluster.pools import name_of
from plumage_cli.cluster.rights import may
from plumage_operator.kinds import INTEGRATIONS, Integration

__all__ = ["check_integrations"]

_SHOWN = 3
_Thing = Mapping[str, Any]


def check_integrations(cluster: Cluster, pools: Sequence[_Thing], everywhere: bool) -> Iterator[Finding]:
    """Of these pools, which are all of the cluster's, or some of its namespace."""
    asked = {
        one: asking for one in INTEGRATIONS if (asking := [pool for pool in pools if one.requested_by(pool["spec"])])
    }
    there = operators(cluster) if pools else []
    for integration, asking in asked.items():
        if not _is_served(cluster, integration):
            what = f"the cluster does not know {integration.kind} ({_group_version(integration)}), which {_who(asking)}"
            remedy = f"install its definition, then restart the operator; or drop spec.{integration.field}"
            yield Finding(Verdict.BAD, what, remedy)
            continue
        for operator in there:
            yield from _operator(cluster, integration, operator, asking)
    for integration in INTEGRATIONS if there else ():
        idle = {name_of(pool) for pool in pools if not integration.requested_by(pool["spec"])}
        for thing in _made(cluster, integration, everywhere):
            if (name_of(thing)[0], pool_of(thing["metadata"].get("labels") or {})) in idle:
                yield from _left(cluster, integration, thing, there)


def _operator(
    cluster: Cluster, integration: Integration, operator: _Thing, asking: Sequence[_Thing]
) -> Iterator[Finding]:
    """Of the pools that it looks after."""
    kind, plural, user = integration.kind, integration.plural, user_of(operator)
    own = [pool for pool in asking if _looks_after(operator, name_of(pool)[0])]
    spaces = sorted({name_of(pool)[0] for pool in own})
    lacking = [one for one in spaces if not may(cluster, user, integration.group, plural, "create", one)]
    if lacking:
        theirs = [pool for pool in own if name_of(pool)[0] in lacking]
        yield Finding(Verdict.BAD, f"{user} may not create {plural}, which {_who(theirs)}", integration.remedy)
    elif own and integration.switch not in words(operator, "PLUMAGE_INTEGRATIONS"):
        what = f"{user} may create {plural}, and does not watch them: a change of one is not put back"
        yield Finding(Verdict.WARNING, what, f"helm upgrade with integrations.{integration.switch}=true")
    elif own:
        yield Finding(Verdict.GOOD, f"{kind} is known, and {user} may write it")


def _made(cluster: Cluster, integration: Integration, everywhere: bool) -> list[dict[str, Any]]:
    """All that operators ever made of a kind and that is there; nothing where one may not see it."""
    place = "" if everywhere else f"/namespaces/{quote(cluster.namespace)}"
    path = f"/apis/{_group_version(integration)}{place}/{integration.plural}"
    try:
        return list(cluster.get(path, {"labelSelector": OURS_SELECTOR})["items"])
    except ApiError as error:
        if error.status in (401, 403, 404):
            return []
        raise


def _left(cluster: Cluster, integration: Integration, thing: _Thing, there: Sequence[_Thing]) -> Iterator[Finding]:
    """Of what its pool does not ask for. An operator that sees it and may delete it is about to."""
    space, name = name_of(thing)
    if any(_removes(cluster, integration, operator, space) for operator in there):
        return
    what = f"{integration.kind} {space}/{name} is there, its pool does not ask for it, and no operator removes it"
    yield Finding(Verdict.WARNING, what, f"kubectl -n {space} delete {integration.plural}.{integration.group} {name}")


def _removes(cluster: Cluster, integration: Integration, operator: _Thing, space: str) -> bool:
    sees = _looks_after(operator, space) and integration.switch in words(operator, "PLUMAGE_INTEGRATIONS")
    return sees and may(cluster, user_of(operator), integration.group, integration.plural, "delete", space)


def _looks_after(operator: _Thing, space: str) -> bool:
    """No namespace is all."""
    watched = words(operator, "PLUMAGE_WATCH_NAMESPACES")
    return not watched or space in watched


def _is_served(cluster: Cluster, integration: Integration) -> bool:
    found = cluster.find(f"/apis/{_group_version(integration)}") or {}
    return any(one.get("name") == integration.plural for one in found.get("resources") or ())


def _group_version(integration: Integration) -> str:
    return f"{integration.group}/{integration.version}"


def _who(asking: Sequence[_Thing]) -> str:
    """As a sentence goes on that began with what they ask for."""
    names = ["/".join(name_of(pool)) for pool in asking]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"pool {names[0]} asks for" if len(names) == 1 else f"pools {', '.join(names[:_SHOWN])}{more} ask for"
