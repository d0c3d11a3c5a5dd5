"""Performs the actions of a plan: the only place where a plan meets the API server.

Before the first apply of a child, the operator's `Update` entry in `managedFields` becomes its `Apply` entry. The API
server keeps the two apart, and a field that both entries name would stay after it is no longer applied.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from plumage.cluster import MANAGED_BY
from plumage_operator.cache.store import Store
from plumage_operator.controller.actions import Action, Annotate, Apply, CreateSecret, Delete, EmitEvent, WriteStatus
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.kinds import INTEGRATIONS, KINDS
from plumage_operator.kube.client import KubeClient, resource_path
from plumage_operator.kube.errors import ConflictError, GoneError, RefusedError, is_namespace_ending
from plumage_operator.observed import Object, Refusal, key_of, meta
from plumage_operator.resources import APPLIED
from plumage_operator.status.conditions import Reason

__all__ = ["Performer", "as_applied"]

log = logging.getLogger(__name__)

_NEWEST: Final = "provenReplicas"
"""The field of a pool's status that this operator writes and the definition of before it does not know."""

_SECRET_BYTES: Final = 32

_ON_REQUEST: Final = {one.kind: one for one in INTEGRATIONS}

_NO_RIGHT: Final = re.compile(r'User "[^"]+" cannot \w+ resource "')
"""How the API server says that a right is missing, whoever decides on it; admission says no in other words."""


class Performer:
    """What the API server answers goes into the store at once, so that the next plan need not wait for the watch."""

    def __init__(self, api: KubeClient, recorder: EventRecorder, store: Store) -> None:
        self._api = api
        self._recorder = recorder
        self._store = store
        self._told_older = False

    async def perform(self, pool: Object, actions: Iterable[Action]) -> tuple[Refusal, ...]:
        """All actions in their order. Refusals are collected, for one child's must not keep the others from being
        made; what may work later is raised."""
        refusals: list[Refusal] = []
        for action in actions:
            if isinstance(action, EmitEvent) and action.child in {(one.kind, one.name) for one in refusals}:
                continue  # what it says was not done
            try:
                await self._do(pool, action)
            except RefusedError as error:
                refusals.append(_refusal(pool, action, error))
            except NameTakenError as error:
                refusals.append(error.refusal)
        return tuple(refusals)

    async def _do(self, pool: Object, action: Action) -> None:
        namespace = str(meta(pool)["namespace"])
        match action:
            case Apply(child, known):
                self._store.put(await self._brought_about(pool, child, known=known))
            case CreateSecret(secret, entries):
                await self._make_secret(secret, entries)
            case Delete(kind, name, uid):
                await self._api.delete(kind, namespace, name, uid)
            case Annotate(pod, annotations):
                await self._api.annotate(namespace, pod, annotations)
            case EmitEvent():
                await self._recorder.tell(pool, action)
            case WriteStatus(status):
                await self._write_status(pool, status)

    async def _make_secret(self, secret: Object, entries: Iterable[str]) -> None:
        """What the API server answers holds the entries too, and is kept nowhere."""
        content = {entry: secrets.token_urlsafe(_SECRET_BYTES) for entry in entries}
        try:
            await self._api.create({**secret, "stringData": content})
        except ConflictError as error:
            if error.reason != "AlreadyExists":  # such as a quota that changed meanwhile
                raise

    async def _brought_about(self, pool: Object, child: Object, *, known: bool) -> Object:
        """Nothing of somebody else's is taken over, though server-side apply would: what is not known is created, which
        the API server does only where there is nothing of that name; what is there is read before it is written to."""
        try:
            live = await self._live(child) if known else None
            if live is None:
                try:
                    return await self._api.create(child)
                except ConflictError:
                    live = await self._live(child)
                    if live is None:  # it has gone since, or the conflict was about a quota
                        raise
            return await self._applied(pool, child, live)
        except GoneError as error:  # only a kind, or the namespace, can be missing
            raise RefusedError(f"{error}. Is kind {child['kind']} installed in this cluster?") from error

    async def _live(self, child: Object) -> Object | None:
        return await self._api.get(*_place(child))

    async def _applied(self, pool: Object, child: Object, live: Object) -> Object:
        if not _is_ours(pool, live):
            raise NameTakenError(Refusal(*key_of(child), Reason.NAME_TAKEN, _taken(*key_of(child), live, pool)))
        if child.get("roleRef") != live.get("roleRef"):  # what a binding binds can't be changed, only made anew
            await self._tried(child)
            await self._api.delete(*_place(child), str(meta(live)["uid"]))
            return await self._api.create(child)
        entries = as_applied(meta(live).get("managedFields") or ())
        if entries is not None:
            await self._api.replace_managed_fields({**live, "kind": child["kind"]}, entries)
        return await self._api.apply(child)

    async def _tried(self, child: Object) -> None:
        """Whether the API server would create it, under a name of its own choice: RefusedError while the old one is
        there still. It lets nobody bind a role that he may not, and routers without a binding find no engine."""
        unnamed = {name: value for name, value in meta(child).items() if name != "name"}
        trial = {**child, "metadata": {**unnamed, "generateName": f"{meta(child)['name']}-"}}
        query = {"fieldManager": MANAGED_BY, "fieldValidation": "Strict", "dryRun": "All"}
        path = resource_path(*KINDS[str(child["kind"])], str(meta(child)["namespace"]))
        await self._api.request("POST", path, query=query, body=trial)

    async def _write_status(self, pool: Object, status: Object) -> None:
        try:
            self._store.put(await self._status_written(pool, status))
        except GoneError:  # deleted meanwhile; nothing may be made for it any more, whatever the watch told
            self._store.remove(pool)

    async def _status_written(self, pool: Object, status: Object) -> dict[str, Any]:
        """Without the newest field where the definition is older than this operator: all else that the status says is
        worth more. `helm upgrade` changes the chart's definitions; those that somebody else brings
        (`crds.enabled=false`) may stay older. The field is tried each time, for a definition may be upgraded any time;
        without it a pool that grows is held against its whole size, as before."""
        plural = "inferencegateways" if pool.get("kind") == "InferenceGateway" else "inferencepools"
        try:
            return await self._api.write_status(pool, plural, status)
        except RefusedError as error:
            if f".status.{_NEWEST}: field not declared" not in str(error):
                raise
            if not self._told_older:
                self._told_older = True
                older = "the definition of %s is older than this operator: apply the crds/ of its release (%s)"
                log.warning(older, plural, error)
        return await self._api.write_status(pool, plural, {key: status[key] for key in status if key != _NEWEST})


class NameTakenError(Exception):
    """The child's name belongs to somebody else."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def _place(child: Object) -> tuple[str, str, str]:
    kind, name = key_of(child)
    return kind, str(meta(child)["namespace"]), name


def _is_ours(pool: Object, live: Object) -> bool:
    """Owned by this very pool; or once applied by it, and its owner reference was removed."""
    owners = [owner for owner in meta(live).get("ownerReferences") or () if owner.get("controller")]
    if owners:
        return bool(owners[0].get("uid") == meta(pool).get("uid"))
    return APPLIED in (meta(live).get("annotations") or {})


def _taken(kind: str, name: str, live: Object, pool: Object) -> str:
    owners = [owner for owner in meta(live).get("ownerReferences") or () if owner.get("controller")]
    if not owners:
        return f"{kind} {name} exists and is not the pool's: remove or rename it, or give the pool another name"
    owner = f"{owners[0].get('kind')} {owners[0].get('name')}"
    if (owners[0].get("kind"), owners[0].get("name")) == (pool.get("kind"), meta(pool).get("name")):
        return f"{kind} {name} belongs to the pool of this name that was deleted; it is waited for"
    return f"{kind} {name} belongs to {owner}: give the pool another name"


def _refusal(pool: Object, action: Action, error: RefusedError) -> Refusal:
    kind, name = _about(pool, action)
    if is_namespace_ending(error):
        return Refusal(kind, name, Reason.NAMESPACE_ENDS, f"the namespace is being deleted: {error}")
    if "exceeded quota" in str(error):
        told = f"{kind} {name} is refused by a quota: {error}. Raise the quota."
        return Refusal(kind, name, Reason.QUOTA_EXCEEDED, told)
    told = f"the API server refuses {kind} {name}: {error}{_remedy(kind, action, error)}"
    return Refusal(kind, name, Reason.CHILD_REFUSED, told)


def _remedy(kind: str, action: Action, error: RefusedError) -> str:
    """What to do where the operator lacks a right that it has on request only; empty for any other refusal."""
    if kind not in _ON_REQUEST or _NO_RIGHT.search(str(error)) is None:
        return ""
    one = _ON_REQUEST[kind]
    return f". {one.removal if isinstance(action, Delete) else one.remedy}"


def _about(pool: Object, action: Action) -> tuple[str, str]:
    match action:
        case Apply(child, _) | CreateSecret(child, _):
            return key_of(child)
        case Delete(kind, name, _):
            return kind, name
        case Annotate(pod, _):
            return "Pod", pod
        case EmitEvent():
            return "Event", action.reason
        case WriteStatus():
            return str(pool.get("kind")), "status"


Entry = Mapping[str, Any]


def as_applied(entries: Sequence[Entry]) -> list[Entry] | None:
    """The entries (`metadata.managedFields`) with all that we created counted as applied; None where nothing is."""
    created = [entry for entry in entries if _is_our_entry(entry, "Update")]
    if not created:
        return None
    applied = [entry for entry in entries if _is_our_entry(entry, "Apply")]
    fields = reduce(_union, (entry.get("fieldsV1") or {} for entry in (*applied, *created)))
    others = [entry for entry in entries if entry not in (*applied, *created)]
    return [{**(*applied, *created)[0], "operation": "Apply", "fieldsV1": fields}, *others]


def _is_our_entry(entry: Entry, operation: str) -> bool:
    """Of the object itself: a subresource's fields are another matter."""
    return entry.get("manager") == MANAGED_BY and entry.get("operation") == operation and not entry.get("subresource")


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {name: _union(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}
