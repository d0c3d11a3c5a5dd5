"""Which pools a gateway serves, under which names, and which parts of its spec it can't serve. Pure.

A pool is served if it refers to the gateway (`spec.router.gatewayRef`), because then it has no router of its own. A
gateway's `models` give such pools the names that clients use. A pool that no model names is served under its own names.
A name leads to one pool: of several that ask for it, the oldest gets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from plumage.api.v1alpha1 import InferenceGateway, InferencePool
from plumage.errors import ManifestError
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
    """served: oldest first. problems: the most severe first."""

    served: tuple[ServedPool, ...] = ()
    problems: tuple[GatewayProblem, ...] = ()


@dataclass(slots=True)
class _Claim:
    """A pool with the names that it claims: those of the gateway's models, or its own."""

    pool: InferencePool
    attached: AttachedPool
    names: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.pool.metadata.name


def find_served_pools(observed: ObservedGateway, gateway: InferenceGateway, config: OperatorConfig) -> ServedPools:
    """The pools that the gateway serves now."""
    claims = [_Claim(pool, attached) for attached, pool in _readable(observed.attached)]
    _claim_names(gateway, claims)
    owners, problems = _decide(claims)
    served = [one for one in (_served(claim, owners, config) for claim in claims) if one.names]
    if len(served) > MAX_POOLS:
        left = ", ".join(one.context.metadata.name for one in served[MAX_POOLS:])
        message = f"a gateway serves {MAX_POOLS} pools at most: {left} are not served; give them another gateway"
        problems.append(GatewayProblem(Reason.NOT_SERVED, message))
    return ServedPools(tuple(served[:MAX_POOLS]), (*_missing(observed, gateway), *problems))


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


def _claim_names(gateway: InferenceGateway, claims: Sequence[_Claim]) -> None:
    """A pool of weight 0 is named, and claims no name."""
    by_name = {claim.name: claim for claim in claims}
    named: set[str] = set()
    for model in gateway.spec.models:
        for share in model.pools:
            named.add(share.pool_ref.name)
            claim = by_name.get(share.pool_ref.name)
            if claim is not None and share.weight:
                claim.names += [model.name, *model.aliases]
    for claim in claims:
        model_of = claim.pool.spec.model
        if claim.name not in named:
            claim.names += [model_of.served_name, *model_of.aliases]
        if claim.names:
            claim.names += [adapter.name for adapter in model_of.adapters if adapter.name not in claim.names]


def _decide(claims: Sequence[_Claim]) -> tuple[Mapping[str, str], list[GatewayProblem]]:
    """Which pool each name leads to. Claims come oldest first."""
    owners: dict[str, str] = {}
    lost: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        for name in claim.names:
            owner = owners.setdefault(name, claim.name)
            if owner != claim.name:
                lost.setdefault((owner, claim.name), []).append(name)
    return owners, [_conflict(*pools, names) for pools, names in lost.items()]


def _conflict(older: str, younger: str, names: Sequence[str]) -> GatewayProblem:
    message = (
        f"pools {older} and {younger} are both asked for model {', '.join(names)}, but a name leads to one pool: "
        f"{older}, the older one, does. Give {younger} another name or weight 0, or remove one of them; "
        "traffic is not split by weight yet"
    )
    return GatewayProblem(Reason.MODEL_CONFLICT, message)


def _missing(observed: ObservedGateway, gateway: InferenceGateway) -> Iterator[GatewayProblem]:
    named = sorted({share.pool_ref.name for model in gateway.spec.models for share in model.pools})
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


def _served(claim: _Claim, owners: Mapping[str, str], config: OperatorConfig) -> ServedPool:
    """A pool without a name is not served. volume_suffix: one pod has the volumes of several pools."""
    context = PoolContext(claim.pool, config, 1, volume_suffix=f"-{digest(claim.name)[:8]}")
    if model_mistakes(context):
        return ServedPool(context, ())
    names = tuple(dict.fromkeys(name for name in claim.names if owners[name] == claim.name))
    return ServedPool(context, names, tuple(cordoned_replicas(claim.attached.pods)))
