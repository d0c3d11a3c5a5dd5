"""`plan(observed, site, now) → actions`: all that the operator decides about a pool. Pure.

Level-based: it looks at what is, never at what happened, so a plan that was cut short anywhere is simply made again.
An object that is as it should be gets no action; where all are, there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from plumage.autoscaling import DELETION_COST
from plumage.cluster import child_name
from plumage_operator.config import Site
from plumage_operator.controller.actions import Action, Annotate, Apply, Delete, MakeSecret, Tell, WriteStatus
from plumage_operator.controller.drift import drift
from plumage_operator.kinds import KINDS
from plumage_operator.observed import ChildKey, Object, Observed, key_of, meta, own_child, owner_uid, status_of
from plumage_operator.resources import APPLIED, Child, Scene, build_children, build_keys, with_cordons
from plumage_operator.resources.context import cordoned, goes, is_paused, read_scene
from plumage_operator.resources.settings import ENTRIES
from plumage_operator.status.conditions import Fact, Reason, Type
from plumage_operator.status.diagnosis import stuck_pods
from plumage_operator.status.pool_status import changed_materially, make_status, pool_facts, refused_facts, was

__all__ = ["brought_about", "plan", "plan_changes", "plan_keys", "plan_words", "removed", "told"]

_TOLD: Final = (Type.READY, Type.PROGRESSING, Type.PAUSED)
"""Conditions whose changes are events. The others say the same, or say it to programs."""


def plan(observed: Observed, site: Site, now: float) -> tuple[Action, ...]:
    """All that is to be done, in this order. now: seconds since 1970."""
    return (*plan_changes(observed, site), *plan_words(observed, site, now))


def plan_changes(observed: Observed, site: Site) -> tuple[Action, ...]:
    """What makes the cluster as the spec says; of a paused pool, as its pods' cordons say. Nothing for a pool that
    goes: the garbage collector takes its children, and their pods drain."""
    if goes(observed.pool):
        return ()
    scene, mistakes = read_scene(observed, site)
    if scene is None or mistakes:
        return ()
    return tuple(_cordons(observed, scene) if is_paused(observed.pool) else _changes(observed, scene))


def plan_keys(observed: Observed, site: Site, *, recently: bool = False) -> tuple[Action, ...]:
    """The Secret with the pool's own keys, where it may be missing: before the first engines are made, and while pods
    wait for their volumes. The operator can't read Secrets, so nothing tells whether it is there. recently: it was made
    or found a moment ago, so pods wait for something else."""
    if goes(observed.pool) or is_paused(observed.pool):
        return ()
    engines = own_child(observed, ("Deployment", child_name(str(meta(observed.pool).get("name")), "engine")))
    if engines is not None and (recently or not stuck_pods((*observed.pods, *observed.gateway_pods))):
        return ()
    scene, mistakes = read_scene(observed, site)
    if scene is None or mistakes or scene.pool.spec.keys_ref is not None:
        return ()
    return (MakeSecret(build_keys(scene), ENTRIES),)


def plan_words(observed: Observed, site: Site, now: float) -> tuple[Action, ...]:
    """What is said of the pool: events, then its status."""
    if goes(observed.pool):
        return ()
    paused = is_paused(observed.pool)
    scene, mistakes = read_scene(observed, site)
    if scene is None or mistakes:
        return tuple(_told(observed, refused_facts(mistakes, paused=paused), None, now))
    return tuple(_told(observed, pool_facts(observed, scene, paused=paused), scene, now))


def _changes(observed: Observed, scene: Scene) -> Iterator[Action]:
    wanted = build_children(scene, cordoned(observed.pods))
    yield from _deletion_costs(observed)
    for child in wanted:
        yield from brought_about(observed, child)
    yield from removed(observed, {key_of(child) for child in wanted})


def _cordons(observed: Observed, scene: Scene) -> Iterator[Action]:
    """Whoever cordons a replica means now, and says so of a pod. A gateway has the cordons of its pools by its own
    look."""
    live = observed.children.get(("ConfigMap", scene.name("router")))
    if live is None or owner_uid(live) != meta(observed.pool).get("uid"):
        return
    child = with_cordons(scene, live, cordoned(observed.pods))
    if scene.pool.spec.router.gateway_ref is None and child["data"] != live.get("data"):
        yield Apply(child, known=True)


def _deletion_costs(observed: Observed) -> Iterator[Action]:
    """Before the Deployment shrinks: a ReplicaSet looks at them when it chooses who goes."""
    costs: Mapping[str, int] = {} if observed.scaling is None else observed.scaling.deletion_costs
    for pod in observed.pods:
        name, annotations = str(meta(pod).get("name")), meta(pod).get("annotations") or {}
        if name in costs and annotations.get(DELETION_COST) != str(costs[name]):
            yield Annotate(name, {DELETION_COST: str(costs[name])})


def brought_about(observed: Observed, child: Child) -> Iterator[Action]:
    """What makes the child as it should be: nothing where it is so."""
    key = key_of(child)
    live = observed.children.get(key)
    if live is None:
        yield Apply(child, known=False)
        if _existed(observed, key):
            yield Tell("Normal", "ChildRecreated", f"{key[0]} {key[1]} was deleted and is created again", key)
        return
    if (owner := owner_uid(live)) not in ("", meta(observed.pool).get("uid")):
        yield Apply(child, known=False)  # another pool of that name had it: the performer looks, and refuses
        return
    applied = (meta(live).get("annotations") or {}).get(APPLIED)
    paths = drift(child, live)
    unchanged = applied == child["metadata"]["annotations"][APPLIED] and owner
    if unchanged and not paths:
        return
    yield Apply(child, known=bool(owner))
    if unchanged:
        said = f"{key[0]} {key[1]} was changed by somebody ({', '.join(paths)}) and is put back"
        yield Tell("Warning", "ChildRepaired", said, key)


def removed(observed: Observed, wanted: set[ChildKey]) -> Iterator[Action]:
    """Children that the spec no longer asks for; of others' objects only the owner may dispose."""
    for key, live in sorted(observed.children.items()):
        ours = owner_uid(live) == meta(observed.pool).get("uid")
        if key not in wanted and key[0] in KINDS and ours and "deletionTimestamp" not in meta(live):
            yield Delete(key[0], key[1], str(meta(live).get("uid", "")))


def _existed(observed: Observed, key: ChildKey) -> bool:
    """Whether a child that is missing was removed by somebody: it was there, and the present spec was once fully
    applied. One that was never there is new to this operator, or went while none ran."""
    status = status_of(observed.pool)
    applied = status.get("observedGeneration") == meta(observed.pool).get("generation")
    return key in observed.lost and applied and was(observed.pool, Type.ROUTER_READY)[1] != ""


def _told(observed: Observed, facts: Sequence[Fact], scene: Scene | None, now: float) -> Iterator[Action]:
    """Events of what changed, then the status: an event that is lost with a crash would never be told, one that is told
    twice is counted."""
    status: dict[str, Any] = make_status(observed, facts, scene, now)
    if changed_materially(status_of(observed.pool), status):
        yield from told(observed, facts)
        yield from _resized(observed, status)
        yield WriteStatus(status)


def told(observed: Observed, facts: Sequence[Fact]) -> Iterator[Action]:
    """Events of those that are news to what was told before."""
    for fact in facts:
        if fact.type in _TOLD and _is_news(observed, fact):
            yield Tell(_kind(fact), fact.reason, fact.message or str(fact.type))


def _told_before(observed: Observed) -> Object:
    """The pool as its events told it last: with its own status, or with the one that the API server refused."""
    return observed.pool if observed.said is None else {**observed.pool, "status": observed.said}


def _resized(observed: Observed, status: Mapping[str, Any]) -> Iterator[Action]:
    """The autoscaler's own words where the size that it chose is another than was told. People may give a paused pool
    one that it did not choose."""
    said, now = observed.scaling, status.get("desiredReplicas")
    before = status_of(_told_before(observed)).get("desiredReplicas")
    if said is not None and "autoscaling" in said.fields and before not in (None, now) and now == said.desired:
        yield Tell("Normal", said.reason, said.message)


def _is_news(observed: Observed, fact: Fact) -> bool:
    before = was(_told_before(observed), fact.type)
    first = before == ("", "")
    quiet = fact.type is Type.PAUSED and fact.status == "False"
    return before != (fact.status, str(fact.reason)) and not (first and quiet)


def _kind(fact: Fact) -> Any:
    well = {Type.READY: "True", Type.PROGRESSING: "True"}.get(fact.type, fact.status)
    harmless = (Reason.SETTLED, Reason.STARTING, Reason.WARMING, Reason.RESIZING)
    good = fact.status == well and fact.reason != Reason.DEGRADED
    return "Normal" if good or fact.reason in harmless else "Warning"
