"""What a router asks of a cluster, made only where its configuration wants it: else the extra `kube` may be absent."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from plumage.incluster.config import ApiServerConfig
from plumage_router.config import AuthConfig, PoolConfig
from plumage_router.membership import Membership, MembershipFile
from plumage_router.replicas import Fleet

if TYPE_CHECKING:
    from plumage.incluster.callers import Callers

__all__ = ["find_callers", "find_members"]


def find_members(config: PoolConfig, fleet: Fleet, rng: random.Random) -> Membership:
    """Who keeps the fleet: a file, or the API server."""
    if config.membership is None:
        assert config.membership_file is not None, "a router's configuration has exactly one of the two"
        return MembershipFile(config.membership_file, config.pool, fleet)
    from plumage.incluster.api import ApiServer
    from plumage_router.slices import SliceMembership

    return SliceMembership(config.membership.endpoint_slices, ApiServer(config.api_server), fleet, rng)


def find_callers(auth: AuthConfig, api_server: ApiServerConfig) -> Callers | None:
    """The service accounts that may read the fleet's figures; None where none are named."""
    if not auth.callers:
        return None
    from plumage.incluster.api import ApiServer
    from plumage.incluster.callers import Callers

    return Callers(ApiServer(api_server), auth.callers)
