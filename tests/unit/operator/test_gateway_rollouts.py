"""Which changes restart a gateway's routers, and which the running routers take over."""

from __future__ import annotations

from typing import Any

import pytest
from support.operator_world import CONFIG, pool_object

from plumage.api.v1alpha1 import InferenceGateway, InferencePool, parse_kept
from plumage_operator.resources import GatewayContext, PoolContext, ServedPool, build_gateway_children

POOL: dict[str, Any] = {
    "model": {"uri": "builtin://tiny-chat"},
    "engine": {"runtime": "Simulator"},
    "router": {"gatewayRef": {"name": "front"}},
    "rollout": {"drainTimeoutSeconds": 300},
}


def served(spec: dict[str, Any], name: str) -> ServedPool:
    pool = parse_kept(pool_object(spec, name=name), "the pool")
    assert isinstance(pool, InferencePool)
    return ServedPool(PoolContext(pool, CONFIG, 1, volume_suffix=f"-{name}"), (name,))


def template(spec: dict[str, Any], *pools: dict[str, Any]) -> Any:
    """The pod template of the routers: a change is a rollout."""
    models = [{"name": "chat", "pools": [{"poolRef": {"name": "pool-0"}}]}]
    thing = {**pool_object({"models": models, **spec}, name="front"), "kind": "InferenceGateway"}
    gateway = parse_kept(thing, "the gateway")
    assert isinstance(gateway, InferenceGateway)
    context = GatewayContext(gateway, CONFIG, tuple(served(one, f"pool-{index}") for index, one in enumerate(pools)))
    (found,) = (child for child in build_gateway_children(context) if child["kind"] == "Deployment")
    return found["spec"]["template"]


@pytest.mark.parametrize(
    "spec",
    [
        {"listeners": [{"name": "http", "port": 80}, {"name": "other", "port": 8080}]},
        {"flowControl": {"maxInFlight": 5}},
        {"replicas": 3},
    ],
)
def test_ports_bounds_and_replicas_roll_no_router(spec: dict[str, Any]) -> None:
    assert template(spec, POOL) == template({}, POOL)


def test_keys_roll_the_routers() -> None:
    assert template({"auth": {"apiKeysRef": {"name": "keys", "key": "k"}}}, POOL) != template({}, POOL)


@pytest.mark.parametrize(
    ("pool", "rolls"),
    [
        (POOL, False),
        ({**POOL, "engine": {**POOL["engine"], "batchLimit": "Static"}}, False),
        ({**POOL, "rollout": {"drainTimeoutSeconds": 60}}, False),
        ({**POOL, "rollout": {"drainTimeoutSeconds": 900}}, True),
        ({**POOL, "model": {"uri": "pvc://claim/model"}, "engine": {}}, True),
        ({**POOL, "keysRef": {"name": "mine"}}, True),
    ],
    ids=["the same", "another engine", "shorter timeout", "longer timeout", "on a claim", "another Secret"],
)
def test_changed_pool_rolls_the_routers_only_if_their_pods_change(pool: dict[str, Any], rolls: bool) -> None:
    assert (template({}, POOL, pool) != template({}, POOL, POOL)) is rolls


def test_new_pool_rolls_the_routers_because_they_mount_its_keys() -> None:
    """The volume is optional: the missing Secret of one pool does not affect the others."""
    alone, both = template({}, POOL), template({}, POOL, POOL)
    volumes = [volume for volume in both["spec"]["volumes"] if volume not in alone["spec"]["volumes"]]
    assert [(one["name"], one["secret"]["optional"]) for one in volumes] == [("keys-of-pool-pool-1", True)]
