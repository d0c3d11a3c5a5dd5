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
from plumage_operator.controller.drift import additions
from plumage_operator.controller.event_recorder import EventRecorder
from plumage_operator.kinds import INTEGRATIONS, KINDS
from plumage_operator.kube.client import KubeClient, resource_path
from plumage_operator.kube.errors import ConflictError, GoneError, RefusedError, is_namespace_ending
from plumage_operator.observed import Object, Refusal, key_of, meta
from plumage_operator.resources import APPLIED
from plumage_operator.status.conditions import Reason

__all__ = ["Performer", "as_applied"]

log = logging.getLogger(__name__)

_NEWEST: Final = ("provenReplicas", "adapters")
"""The newest fields of a pool's status, which older definitions do not have."""

_SECRET_BYTES: Final = 32

_ON_REQUEST: Final = {one.kind: one for one in INTEGRATIONS}

_NO_RIGHT: Final = re.compile(r'User "[^"]+" cannot \w+ resource "')
"""The API server's message for a missing right, for every authorizer. Admission has other messages."""


class Performer:
    """Puts the API server's answers into the cache at once, so that the next plan need not wait for the watch."""

    def __init__(self, api: KubeClient, recorder: EventRecorder, store: Store) -> None:
        self._api = api
        self._recorder = recorder
        self._store = store
        self._warned = False

    async def perform(self, pool: Object, actions: Iterable[Action]) -> tuple[Refusal, ...]:
        """Performs all actions in order, and returns the refusals.

        Refusals are collected, because one child's must not block the others. Errors that a retry may cure are raised.
        """
        refusals: list[Refusal] = []
        for action in actions:
            if isinstance(action, EmitEvent) and action.child in {(one.kind, one.name) for one in refusals}:
                continue  # its action was refused
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
                self._store.put(await self._ensure(pool, child, known=known))
            case CreateSecret(secret, entries):
                await self._create_secret(secret, entries)
            case Delete(kind, name, uid):
                await self._api.delete(kind, namespace, name, uid)
            case Annotate(pod, annotations):
                await self._api.annotate(namespace, pod, annotations)
            case EmitEvent():
                await self._recorder.record(pool, action)
            case WriteStatus(status):
                await self._write_status(pool, status)

    async def _create_secret(self, secret: Object, entries: Iterable[str]) -> None:
        """Creates a Secret. The API server's answer contains the tokens too, and is not kept."""
        content = {entry: secrets.token_urlsafe(_SECRET_BYTES) for entry in entries}
        try:
            await self._api.create({**secret, "stringData": content})
        except ConflictError as error:
            if error.reason != "AlreadyExists":  # for example a quota that changed meanwhile
                raise

    async def _ensure(self, pool: Object, child: Object, *, known: bool) -> Object:
        """Creates or applies a child, and never takes over another owner's object.

        Server-side apply would take it over. So an unknown child is created, which the API server does only where no
        object has its name. An object that exists is read before it is written.
        """
        try:
            live = await self._live(child) if known else None
            if live is None:
                try:
                    return await self._api.create(child)
                except ConflictError:
                    live = await self._live(child)
                    if live is None:  # it was deleted since, or the conflict was about a quota
                        raise
            return await self._applied(pool, child, live)
        except GoneError as error:  # the kind or the namespace is missing
            kind = key_of(child)[0]
            definition = f" {_ON_REQUEST[kind].definition}" if kind in _ON_REQUEST else ""
            raise RefusedError(f"{error}. Is kind {kind} installed in this cluster?{definition}") from error

    async def _live(self, child: Object) -> Object | None:
        return await self._api.get(*_place(child))

    async def _applied(self, pool: Object, child: Object, live: Object) -> Object:
        if not _is_ours(pool, live):
            raise NameTakenError(Refusal(*key_of(child), Reason.NAME_TAKEN, _taken(*key_of(child), live, pool)))
        if child.get("roleRef") != live.get("roleRef"):  # the roleRef of a binding can't be changed
            await self._dry_run(child)
            await self._api.delete(*_place(child), str(meta(live)["uid"]))
            return await self._api.create(child)
        entries = as_applied(meta(live).get("managedFields") or ())
        if entries is not None:
            read = {**live, "apiVersion": child["apiVersion"], "kind": child["kind"]}
            await self._api.replace_managed_fields(read, entries)
        applied = await self._api.apply(child)
        added = additions(child, applied)
        return await self._api.remove_fields(applied, added) if added else applied

    async def _dry_run(self, child: Object) -> None:
        """Checks whether the API server would create the child under a generated name. Raises RefusedError otherwise.

        The old one is still there. The API server lets nobody bind a role that he may not, and routers without a
        binding find no engine.
        """
        unnamed = {name: value for name, value in meta(child).items() if name != "name"}
        trial = {**child, "metadata": {**unnamed, "generateName": f"{meta(child)['name']}-"}}
        query = {"fieldManager": MANAGED_BY, "fieldValidation": "Strict", "dryRun": "All"}
        path = resource_path(*KINDS[key_of(child)[0]], str(meta(child)["namespace"]))
        await self._api.request("POST", path, query=query, body=trial)

    async def _write_status(self, pool: Object, status: Object) -> None:
        try:
            self._store.put(await self._status_written(pool, status))
        except (
            GoneError
        ):  # deleted meanwhile; no child may be created for it any more, even before the watch reports it
            self._store.remove(pool)

    async def _status_written(self, pool: Object, status: Object) -> dict[str, Any]:
        """Writes the status, without its newest fields where the definition is older than this operator.

        The rest of the status is worth more than the fields. `helm upgrade` updates the chart's definitions, but those
        that an administrator installs (`crds.enabled=false`) may be older. They are tried each time, because a
        definition may be upgraded at any time. Without it, a growing pool is compared with its whole size.
        """
        plural = "inferencegateways" if pool.get("kind") == "InferenceGateway" else "inferencepools"
        while True:
            try:
                return await self._api.write_status(pool, plural, status)
            except RefusedError as error:
                unknown = [
                    name for name in _NEWEST if name in status and f".status.{name}: field not declared" in str(error)
                ]
                if not unknown:
                    raise
                if not self._warned:
                    self._warned = True
                    message = "the definition of %s is older than this operator: apply the crds/ of its release (%s)"
                    log.warning(message, plural, error)
            status = {name: value for name, value in status.items() if name not in unknown}


class NameTakenError(Exception):
    """The child's name belongs to another owner."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def _place(child: Object) -> tuple[str, str, str]:
    kind, name = key_of(child)
    return kind, str(meta(child)["namespace"]), name


def _is_ours(pool: Object, live: Object) -> bool:
    """Owned by this very pool; or applied by it once, and its owner reference was removed."""
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
        return f"{kind} {name} belongs to a deleted pool of this name: waiting until it is collected"
    return f"{kind} {name} belongs to {owner}: give the pool another name"


def _refusal(pool: Object, action: Action, error: RefusedError) -> Refusal:
    kind, name = _subject(pool, action)
    if is_namespace_ending(error):
        return Refusal(kind, name, Reason.NAMESPACE_ENDS, f"the namespace is being deleted: {error}")
    if "exceeded quota" in str(error):
        message = f"a quota refuses {kind} {name}: {error}. Raise the quota."
        return Refusal(kind, name, Reason.QUOTA_EXCEEDED, message)
    message = f"the API server refuses {kind} {name}: {error}{_remedy(kind, action, error)}"
    return Refusal(kind, name, Reason.CHILD_REFUSED, message)


def _remedy(kind: str, action: Action, error: RefusedError) -> str:
    """What to do where the operator lacks an optional right; empty for other refusals."""
    if kind not in _ON_REQUEST or _NO_RIGHT.search(str(error)) is None:
        return ""
    one = _ON_REQUEST[kind]
    return f". {one.removal if isinstance(action, Delete) else one.remedy}"


def _subject(pool: Object, action: Action) -> tuple[str, str]:
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
    """The entries of `metadata.managedFields` with the operator's `Update` entry turned into `Apply`; None if it has
    none.
    """
    created = [entry for entry in entries if _is_our_entry(entry, "Update")]
    if not created:
        return None
    applied = [entry for entry in entries if _is_our_entry(entry, "Apply")]
    fields = reduce(_union, (entry.get("fieldsV1") or {} for entry in (*applied, *created)))
    others = [entry for entry in entries if entry not in (*applied, *created)]
    return [{**(*applied, *created)[0], "operation": "Apply", "fieldsV1": fields}, *others]


def _is_our_entry(entry: Entry, operation: str) -> bool:
    """Only entries of the object itself, without those of subresources."""
    return entry.get("manager") == MANAGED_BY and entry.get("operation") == operation and not entry.get("subresource")


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {name: _union(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}
