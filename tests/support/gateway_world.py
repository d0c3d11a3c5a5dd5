"""A gateway in a simulated cluster, with the pools that refer to it: `operator_world` for gateways."""

from __future__ import annotations

import json
from typing import Any

from support.operator_world import CONFIG, NOW, World, pool_object

from plumage_operator.controller.gateway_plan import plan_gateway_changes, plan_gateway_status
from plumage_operator.observed import AttachedPool, ObservedGateway, Refusal
from plumage_operator.resources import CONFIG_HASH

__all__ = ["ROUTER", "Gateway", "attached", "model"]

ROUTER = ("Deployment", "front-gateway")


def attached(pool: str, born: int = 0, gateway: str | None = "front", **model: Any) -> AttachedPool:
    """A pool behind that gateway, or behind none. born: the second of its creation. model: further fields of its
    `spec.model`."""
    router = {} if gateway is None else {"router": {"gatewayRef": {"name": gateway}}}
    spec = {"model": {"uri": "builtin://tiny-chat", "name": pool, **model}, "engine": {"runtime": "Simulator"}}
    stamp = f"2027-01-01T00:00:{born:02d}Z"
    return AttachedPool(pool_object({**spec, **router}, name=pool, uid=f"uid-{pool}", creationTimestamp=stamp))


def model(name: str, *pools: str, **more: Any) -> dict[str, Any]:
    """One of the gateway's `spec.models`, with all of these pools. more: further fields."""
    return {"name": name, "pools": [{"poolRef": {"name": pool}} for pool in pools], **more}


class Gateway(World):
    """models: what the gateway serves, by default each pool under its own name. spec: further fields. strangers: names
    of pools that refer to no gateway."""

    def __init__(self, *pools: AttachedPool, models: list[dict[str, Any]] | None = None, **spec: Any) -> None:
        served = models or [model(one.pool["metadata"]["name"], one.pool["metadata"]["name"]) for one in pools]
        super().__init__(
            {**pool_object({"models": served, **spec}, name="front", uid="gateway-uid"), "kind": "InferenceGateway"}
        )
        self.pools = list(pools)
        self.strangers: set[str] = set()
        self.refusals: tuple[Refusal, ...] = ()

    def run_controllers(self, ready: bool = True) -> None:
        """Runs the controllers. A pod that existed before keeps its annotations."""
        before = {name: pod["metadata"]["annotations"] for name, pod in self.pods.items()}
        super().run_controllers(ready)
        for name in before.keys() & self.pods.keys():
            self.pods[name]["metadata"]["annotations"] |= before[name]

    def seen(self) -> ObservedGateway:
        names = {one.pool["metadata"]["name"] for one in self.pools} | self.strangers
        return ObservedGateway(self.observed(refusals=self.refusals), tuple(self.pools), frozenset(names))

    def plan(self, config: Any = CONFIG, now: float = NOW, **more: Any) -> Any:
        return (*plan_gateway_changes(self.seen(), config), *plan_gateway_status(self.seen(), config, now))

    @property
    def config(self) -> dict[str, Any]:
        return json.loads(self.objects["ConfigMap", "front-gateway"]["data"]["router.json"])  # type: ignore[no-any-return]

    def names(self) -> dict[str, list[str]]:
        return {pool["pool"]: pool["names"] for pool in self.config["pools"]}

    def hash(self) -> str:
        return str(self.objects[ROUTER]["spec"]["template"]["metadata"]["annotations"][CONFIG_HASH])
