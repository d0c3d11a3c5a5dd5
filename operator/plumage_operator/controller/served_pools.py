"""Which pools a gateway serves, under which names, and which parts of its spec it can't serve. Pure.

A pool is served if it refers to the gateway (`spec.router.gatewayRef`), because then it has no router of its own. A
gateway's `models` give such pools the names that clients use, and several pools shares of a name. A pool that no model
names is served under its own names. Of several that claim a name so, the oldest gets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plumage.api.v1alpha1 import InferenceGateway, InferencePool
from plumage.api.v1alpha1.gateway import GatewayModel
from plumage.errors import ManifestError
from plumage.settings.router_config import RequestMirrorConfig, ShareConfig, SharedModelConfig
from plumage_operator.config import OperatorConfig
from plumage_operator.observed import AttachedPool, Object, ObservedGateway, digest, meta
from plumage_operator.resources import PoolContext, ServedPool, model_mistakes
from plumage_operator.resources.context import cordoned_replicas, is_deleting, read_pool
from plumage_operator.status.conditions import Reason

__all__ = ["MAX_POOLS", "GatewayProblem", "ServedPools", "find_served_pools"]

MAX_POOLS: Final = 64
"""Of one gateway: each pool costs every router of it a mirror and a prober."""


@dataclass(frozen=True, slots=True)
class GatewayProblem:
    """What the gateway's spec asks for and does not get."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ServedPools:
    """served: oldest first. names: that clients may use. shared: the names that lead to several pools, or to another
    model, or whose requests are copied. problems: the most severe first."""

    served: tuple[ServedPool, ...] = ()
    names: tuple[str, ...] = ()
    shared: tuple[SharedModelConfig, ...] = ()
    problems: tuple[GatewayProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Claim:
    """A pool that may be served."""

    pool: InferencePool
    attached: AttachedPool
    context: PoolContext

    @property
    def name(self) -> str:
        return self.pool.metadata.name

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(adapter.name for adapter in self.pool.spec.model.adapters)


@dataclass(frozen=True, slots=True)
class _Route:
    """shares: pools and their weights, in the order of the manifest, so that a larger share only adds conversations.
    fallback: the name of another model. mirror: gets copies."""

    shares: tuple[tuple[str, int], ...]
    fallback: str | None = None
    mirror: RequestMirrorConfig | None = None

    @property
    def shared(self) -> bool:
        return len(self.shares) > 1 or self.fallback is not None or self.mirror is not None

    @property
    def pools(self) -> Iterator[str]:
        """All that have a part in it."""
        yield from (pool for pool, _ in self.shares)
        if self.mirror is not None:
            yield self.mirror.pool


def find_served_pools(observed: ObservedGateway, gateway: InferenceGateway, config: OperatorConfig) -> ServedPools:
    """The pools that the gateway serves now."""
    claims = [_claim(attached, pool, config) for attached, pool in _readable(observed.attached)]
    claims = [claim for claim in claims if not model_mistakes(claim.context)]
    routes, problems = _routes(gateway, claims)
    led = {pool for route in routes.values() for pool in route.pools}
    served = [claim for claim in claims if claim.name in led]
    if len(served) > MAX_POOLS:
        left = ", ".join(claim.name for claim in served[MAX_POOLS:])
        message = f"a gateway serves {MAX_POOLS} pools at most: {left} are not served; give them another gateway"
        problems.append(GatewayProblem(Reason.NOT_SERVED, message))
        routes, _ = _routes(gateway, served := served[:MAX_POOLS])
    accepted = _accepted_names(routes)
    return ServedPools(
        tuple(_served(claim, tuple(accepted[claim.name])) for claim in served),
        tuple(routes),
        tuple(_shared(name, route) for name, route in routes.items() if route.shared),
        (*_missing(observed, gateway), *problems),
    )


def _readable(attached: Sequence[AttachedPool]) -> Iterator[tuple[AttachedPool, InferencePool]]:
    """Oldest first. A pool with an invalid spec reports that itself. A pool that is being deleted gets nothing new."""
    there = [one for one in attached if not is_deleting(one.pool)]
    for one in sorted(there, key=lambda one: _age(one.pool)):
        try:
            yield one, read_pool(one.pool)
        except ManifestError:
            continue


def _age(pool: Object) -> tuple[str, str]:
    """Pools of the same second are ordered by name."""
    return str(meta(pool).get("creationTimestamp", "")), str(meta(pool)["name"])


def _claim(attached: AttachedPool, pool: InferencePool, config: OperatorConfig) -> _Claim:
    """volume_suffix: one pod has the volumes of several pools."""
    suffix = f"-{digest(pool.metadata.name)[:8]}"
    return _Claim(pool, attached, PoolContext(pool, config, 1, volume_suffix=suffix))


def _routes(gateway: InferenceGateway, claims: Sequence[_Claim]) -> tuple[dict[str, _Route], list[GatewayProblem]]:
    """The pools of each name: those of the gateway's models, then of pools that no model names. Claims come oldest
    first. A pool of weight 0 stays: its stored responses are continued there, and its share changes without new
    pods."""
    by_name = {claim.name: claim for claim in claims}
    routes: dict[str, _Route] = {}
    lost: dict[tuple[str, str], list[str]] = {}

    def claim_name(name: str, route: _Route) -> None:
        owner = routes.setdefault(name, route)
        if owner.shares != route.shares:
            lost.setdefault((owner.shares[0][0], route.shares[0][0]), []).append(name)

    adapters: dict[str, _Route] = {}
    without: list[GatewayModel] = []
    for model in gateway.spec.models:
        there = [share for share in model.pools if share.pool_ref.name in by_name]
        found = [(by_name[share.pool_ref.name], share.weight) for share in there]
        if any(weight for _, weight in found):
            mirror = _mirror(model, by_name)
            route = _Route(tuple((claim.name, weight) for claim, weight in found), model.fallback, mirror)
            routes |= dict.fromkeys((model.name, *model.aliases), route)
            # Of several models with the pools of an adapter, the first.
            adapters = dict(_adapters(found, mirror, by_name)) | adapters
        else:
            without.append(model)
    _fall_back(without, gateway, routes)
    for name, route in adapters.items():
        claim_name(name, route)
    named = _named_pools(gateway)
    for claim in claims:
        if claim.name not in named:
            own, model_of = _Route(((claim.name, 1),)), claim.pool.spec.model
            for name in (model_of.served_name, *model_of.aliases, *(adapter.name for adapter in model_of.adapters)):
                claim_name(name, own)
    return routes, [_conflict(*pools, names) for pools, names in lost.items()]


def _fall_back(models: Sequence[GatewayModel], gateway: InferenceGateway, routes: dict[str, _Route]) -> None:
    """Gives the names of models without a pool to the models that they fall back to."""
    following = {model.name: model.fallback for model in gateway.spec.models}
    for model in models:
        name, seen = model.fallback, {model.name}
        while name is not None and name not in seen and name not in routes:
            seen.add(name)
            name = following.get(name)
        if name is not None and name in routes:
            routes |= dict.fromkeys((model.name, *model.aliases), routes[name])


def _named_pools(gateway: InferenceGateway) -> set[str]:
    """The pools in the gateway's `models`."""
    models = gateway.spec.models
    mirrors = (model.request_mirror.pool_ref.name for model in models if model.request_mirror is not None)
    return {share.pool_ref.name for model in models for share in model.pools}.union(mirrors)


def _mirror(model: GatewayModel, claims: Mapping[str, _Claim]) -> RequestMirrorConfig | None:
    """The pool that gets copies of the model's requests; None without one, or where it can't be served."""
    mirror = model.request_mirror
    if mirror is None or mirror.pool_ref.name not in claims:
        return None
    return RequestMirrorConfig(pool=mirror.pool_ref.name, percent=mirror.percent)


def _adapters(
    shares: Sequence[tuple[_Claim, int]], mirror: RequestMirrorConfig | None, claims: Mapping[str, _Claim]
) -> Iterator[tuple[str, _Route]]:
    """An adapter is split between the pools that have it, with the model's weights. Its requests are copied if the
    model's mirror has it too."""
    for name in dict.fromkeys(name for claim, _ in shares for name in claim.adapters):
        having = [(claim.name, weight) for claim, weight in shares if name in claim.adapters]
        copied = mirror if mirror is not None and name in claims[mirror.pool].adapters else None
        if any(weight for _, weight in having):
            yield name, _Route(tuple(having), mirror=copied)


def _accepted_names(routes: Mapping[str, _Route]) -> dict[str, list[str]]:
    """The names that requests to each pool may have: those that lead there, also by fallbacks or as copies."""
    names: dict[str, dict[str, None]] = {}
    for name, first in routes.items():
        route: _Route | None = first
        seen: set[str] = set()
        while route is not None:
            for pool in route.pools:
                names.setdefault(pool, {})[name] = None
            following = route.fallback
            route = None if following is None or following in seen else routes.get(following)
            seen.add(following or "")
    return {pool: list(found) for pool, found in names.items()}


def _shared(name: str, route: _Route) -> SharedModelConfig:
    pools = tuple(ShareConfig(pool=pool, weight=weight) for pool, weight in route.shares)
    return SharedModelConfig(name=name, pools=pools, fallback=route.fallback, request_mirror=route.mirror)


def _conflict(first: str, second: str, names: Sequence[str]) -> GatewayProblem:
    message = (
        f"pools {first} and {second} both have model {', '.join(names)}, which leads to {first}. Give {second} another "
        "name, or list both pools under one of the gateway's models, which splits its requests by weight"
    )
    return GatewayProblem(Reason.MODEL_CONFLICT, message)


def _missing(observed: ObservedGateway, gateway: InferenceGateway) -> Iterator[GatewayProblem]:
    named = sorted(_named_pools(gateway))
    attached = {str(meta(one.pool)["name"]) for one in observed.attached}
    gone = [name for name in named if name not in observed.pools]
    if gone:
        message = f"there is no InferencePool {', '.join(gone)} in this namespace: create it, or remove it here"
        yield GatewayProblem(Reason.POOL_MISSING, message)
    strange = [name for name in named if name in observed.pools and name not in attached]
    if strange:
        message = (
            f"InferencePool {', '.join(strange)} does not refer to this gateway: set its spec.router to "
            f"{{gatewayRef: {{name: {gateway.metadata.name}}}}}, or remove it here"
        )
        yield GatewayProblem(Reason.POOL_NOT_ATTACHED, message)


def _served(claim: _Claim, names: tuple[str, ...]) -> ServedPool:
    return ServedPool(claim.context, names, tuple(cordoned_replicas(claim.attached.pods)))
