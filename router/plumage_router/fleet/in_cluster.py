"""Makes the clients of the API server. They are imported only if the configuration needs them: `kube` is optional."""

from __future__ import annotations

import random

from plumage.incluster.config import ApiServerConfig
from plumage.settings.router_config import AuthConfig, PoolConfig
from plumage_router.fleet.membership import Membership, MembershipFile
from plumage_router.fleet.replicas import Fleet
from plumage_router.http.auth import CallerCheck

__all__ = ["find_callers", "find_members"]


def find_members(config: PoolConfig, fleet: Fleet, rng: random.Random) -> Membership:
    """The source of the pool's replicas: a file, or the API server."""
    if config.membership is None:
        assert config.membership_file is not None, "a router's configuration has exactly one of the two"
        return MembershipFile(config.membership_file, config.pool, fleet)
    from plumage.incluster.api import ApiServer
    from plumage_router.fleet.endpoint_slices import SliceMembership

    return SliceMembership(config.membership.endpoint_slices, ApiServer(config.api_server), fleet, rng)


def find_callers(auth: AuthConfig, api_server: ApiServerConfig) -> CallerCheck | None:
    """Checks the service accounts that may read the fleet report; None without any."""
    if not auth.callers:
        return None
    from plumage.incluster.api import ApiServer
    from plumage.incluster.callers import Callers

    return Callers(ApiServer(api_server), auth.callers)
