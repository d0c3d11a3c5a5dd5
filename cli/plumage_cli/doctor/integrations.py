"""Checks of the optional kinds that pools ask for: `plumage_operator.kinds.INTEGRATIONS`.

The cluster must serve the kind, and the operator must be allowed to write it. An object that no pool asks for any more
and that no operator may delete is reported too: it still leads to its pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from plumage.api_server import ApiServerError
from plumage.cluster import OURS_SELECTOR, pool_of
from plumage_cli.cluster.client import Cluster
from plumage_cli.cluster.custom_resources import name_of
from plumage_cli.cluster.operators import operators, settings, user_of
from plumage_cli.doctor.finding import Finding, Verdict
from plumage_cli.doctor.permissions import may
from plumage_operator.kinds import INTEGRATIONS, Integration

__all__ = ["check_integrations"]

_SHOWN = 3
_Thing = Mapping[str, Any]


def check_integrations(cluster: Cluster, pools: Sequence[_Thing], everywhere: bool) -> Iterator[Finding]:
    """The checks for these pools. everywhere: they are all pools of the cluster, not only those of a namespace."""
    asked = {
        one: asking for one in INTEGRATIONS if (asking := [pool for pool in pools if one.requested_by(pool["spec"])])
    }
    there = operators(cluster) if pools else []
    for integration, asking in asked.items():
        if not _is_served(cluster, integration):
            kind = f"{integration.kind.partition('.')[0]} ({_group_version(integration)})"
            what = f"the cluster does not serve {kind}, and {_askers(asking)} it"
            remedy = f"install its CRD, then restart the operator; or remove spec.{integration.field}"
            yield Finding(Verdict.BAD, what, remedy)
            continue
        for operator in there:
            yield from _operator(cluster, integration, operator, asking)
    for integration in INTEGRATIONS if there else ():
        idle = {name_of(pool) for pool in pools if not integration.requested_by(pool["spec"])}
        for thing in _objects(cluster, integration, everywhere):
            if (name_of(thing)[0], pool_of(thing["metadata"].get("labels") or {})) in idle:
                yield from _orphan(cluster, integration, thing, there)


def _operator(
    cluster: Cluster, integration: Integration, operator: _Thing, asking: Sequence[_Thing]
) -> Iterator[Finding]:
    """Checks one operator's permission, for the pools that it reconciles."""
    kind, plural, user = integration.kind, integration.plural, user_of(operator)
    resource = integration.resource
    own = [pool for pool in asking if _watches(operator, name_of(pool)[0])]
    spaces = sorted({name_of(pool)[0] for pool in own})
    lacking = [one for one in spaces if not may(cluster, user, integration.group, plural, "create", one)]
    if lacking:
        theirs = [pool for pool in own if name_of(pool)[0] in lacking]
        yield Finding(Verdict.BAD, f"{user} may not create {resource}, and {_askers(theirs)} them", integration.remedy)
    elif own and integration.switch not in settings(operator, "PLUMAGE_INTEGRATIONS"):
        what = f"{user} may create {resource}, but does not watch them: drift is not corrected"
        yield Finding(Verdict.WARNING, what, f"helm upgrade with integrations.{integration.switch}=true")
    elif own:
        yield Finding(Verdict.GOOD, f"the cluster serves {kind}, and {user} may write it")


def _objects(cluster: Cluster, integration: Integration, everywhere: bool) -> list[dict[str, Any]]:
    """The objects of a kind that an operator made. Empty where we may not read them."""
    place = "" if everywhere else f"/namespaces/{quote(cluster.namespace)}"
    path = f"/apis/{_group_version(integration)}{place}/{integration.plural}"
    try:
        return list(cluster.get(path, {"labelSelector": OURS_SELECTOR})["items"])
    except ApiServerError as error:
        if error.status in (401, 403, 404):
            return []
        raise


def _orphan(cluster: Cluster, integration: Integration, thing: _Thing, there: Sequence[_Thing]) -> Iterator[Finding]:
    """An object that its pool does not ask for. An operator that watches it and may delete it will do so."""
    space, name = name_of(thing)
    if any(_deletes(cluster, integration, operator, space) for operator in there):
        return
    what = f"{integration.kind} {space}/{name} exists, its pool does not ask for it, and no operator deletes it"
    yield Finding(Verdict.WARNING, what, f"kubectl -n {space} delete {integration.plural}.{integration.group} {name}")


def _deletes(cluster: Cluster, integration: Integration, operator: _Thing, space: str) -> bool:
    sees = _watches(operator, space) and integration.switch in settings(operator, "PLUMAGE_INTEGRATIONS")
    return sees and may(cluster, user_of(operator), integration.group, integration.plural, "delete", space)


def _watches(operator: _Thing, space: str) -> bool:
    """Without a list of namespaces the operator watches all of them."""
    watched = settings(operator, "PLUMAGE_WATCH_NAMESPACES")
    return not watched or space in watched


def _is_served(cluster: Cluster, integration: Integration) -> bool:
    found = cluster.find(f"/apis/{_group_version(integration)}") or {}
    return any(one.get("name") == integration.plural for one in found.get("resources") or ())


def _group_version(integration: Integration) -> str:
    return f"{integration.group}/{integration.version}"


def _askers(asking: Sequence[_Thing]) -> str:
    """The pools as the subject of a sentence, with its verb."""
    names = ["/".join(name_of(pool)) for pool in asking]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"pool {names[0]} asks for" if len(names) == 1 else f"pools {', '.join(names[:_SHOWN])}{more} ask for"
