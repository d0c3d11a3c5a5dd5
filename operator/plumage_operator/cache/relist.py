"""Fills the cache at the start, and removes objects from it whose deletion no watch reported.

A watch that starts or restarts lists first, and a list does not report earlier deletions. An object that is deleted
between the operator's first list and the watch's, or while a watch is broken, would stay in the cache. So all objects
are listed from time to time. What the cache held before the list, and the list lacks, is removed, unless a watch
reported a newer version meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from plumage.cluster import GROUP, VERSION
from plumage_operator.cache.store import ObjectKey, PoolKey, Store
from plumage_operator.kinds import KINDS, label_selector
from plumage_operator.kube.client import KubeClient
from plumage_operator.kube.errors import ApiError, GoneError
from plumage_operator.observed import Object, meta

__all__ = ["fill_store", "keep_relisting", "missing_definitions", "relist"]

log = logging.getLogger(__name__)

_FIRST: Final = 5.0  # seconds, in which watches start

_EVERY: Final = 300.0  # seconds; each relist reads all metadata, about twenty objects for a pool

_NAMES: Final = {where: kind for kind, where in KINDS.items()} | {("v1", "pods"): "Pod"}

_POOLS: Final = (("InferenceGateway", "inferencegateways"), ("InferencePool", "inferencepools"))

Kind = tuple[str, str, str]
"""Group, version and plural."""


async def keep_relisting(
    api: KubeClient, store: Store, kinds: Iterable[Kind], namespaces: Sequence[str], changed: Callable[[PoolKey], None]
) -> None:
    """Runs for ever. changed: called with each pool that lost an object. A failed list is repeated at the next time."""
    kinds, wait = tuple(kinds), _FIRST
    while True:
        await asyncio.sleep(wait)
        wait = _EVERY
        try:
            for pool in await relist(api, store, kinds, namespaces):
                changed(pool)
        except ApiError as error:
            log.warning("can't relist, trying again in %g s: %s", wait, error)


async def relist(api: KubeClient, store: Store, kinds: Iterable[Kind], namespaces: Sequence[str]) -> set[PoolKey]:
    """Removes deleted objects from the cache. Returns the pools that they belonged to."""
    lost: set[PoolKey] = set()
    for kind, api_version, plural, selector in _lists(kinds):
        held = store.versions(kind)
        there: set[ObjectKey] = set()
        for namespace in namespaces or (None,):
            there |= await _places(api, api_version, plural, namespace, selector)
        lost |= store.forget(kind, {one for one in held.keys() - there if store.version(kind, *one) == held[one]})
    return lost


def _lists(kinds: Iterable[Kind]) -> Iterator[tuple[str, str, str, str]]:
    """Kind, apiVersion, plural and label selector."""
    for group, version, plural in kinds:
        api_version = f"{group}/{version}" if group else version
        yield _NAMES[api_version, plural], api_version, plural, label_selector(group)
    for kind, plural in _POOLS:
        yield kind, f"{GROUP}/{VERSION}", plural, ""


async def _places(
    api: KubeClient, api_version: str, plural: str, namespace: str | None, selector: str
) -> set[ObjectKey]:
    """Empty for a kind that the cluster does not know: its objects went with it."""
    try:
        return {_place(one) for one in await api.list_versions(api_version, plural, namespace, selector)}
    except GoneError:
        return set()


def _place(thing: Object) -> ObjectKey:
    return str(meta(thing).get("namespace", "")), str(meta(thing).get("name", ""))


async def missing_definitions(api: KubeClient, namespaces: Sequence[str]) -> list[str]:
    """Names of Plumage's definitions that the cluster lacks."""
    missing = []
    for plural in ("inferencegateways", "inferencepools"):
        try:
            await api.list_versions(f"{GROUP}/{VERSION}", plural, (namespaces or (None,))[0], "")
        except GoneError:
            missing.append(f"{plural}.{GROUP}")
    return missing


async def fill_store(
    api: KubeClient, store: Store, kinds: Iterable[tuple[str, str, str]], namespaces: Sequence[str]
) -> None:
    """Fills the cache before the first decision.

    Watches of many kinds do not start at the same time. A child that no watch has reported yet would look deleted.
    """
    pools = tuple((GROUP, VERSION, plural) for plural in ("inferencegateways", "inferencepools"))
    for group, version, plural in (*kinds, *pools):
        selector = label_selector(group)
        for namespace in namespaces or (None,):
            async for page in api.list_pages(f"{group}/{version}" if group else version, plural, namespace, selector):
                for thing in page:
                    store.put(thing)
