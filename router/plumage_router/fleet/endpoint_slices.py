"""The replicas of a pool in a cluster, from the EndpointSlices of its Service.

If the API server is away, the watch stalls or a permission is missing, the known members stay. `error` has the reason.
Stale members are better than none. A router is ready once the slices were `listed`. Cordoned pods come from a file,
because slices contain no pod annotations.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from plumage.endpoint_slices import SERVICE_LABEL, members_of
from plumage.incluster.api import ApiServer
from plumage.incluster.follow import Follower
from plumage.settings.router_config import CordonedReplicas, EndpointSlicesConfig
from plumage_router.fleet.replicas import Fleet

__all__ = ["SliceMembership"]

log = logging.getLogger(__name__)

_CORDON_INTERVAL: Final = 1.0  # seconds between reads of the cordons file


class SliceMembership:
    """Updates a fleet from the slices."""

    def __init__(self, config: EndpointSlicesConfig, api: ApiServer, fleet: Fleet, rng: random.Random) -> None:
        self._fleet = fleet
        self._cordoned_file = config.cordoned_file
        self._cordoned: frozenset[str] = frozenset()
        self._cordon_error: str | None = None
        self._follower = Follower(
            api,
            f"/apis/discovery.k8s.io/v1/namespaces/{config.namespace}/endpointslices",
            f"{SERVICE_LABEL}={config.service}",
            self._apply,
            what=f"EndpointSlices of {config.namespace}/{config.service}",
            rng=rng,
        )

    @property
    def listed(self) -> bool:
        return self._follower.listed

    @property
    def error(self) -> str | None:
        """Why the members may be stale; None while they are not."""
        return self._follower.error or self._cordon_error

    def poll(self) -> None:
        """Reads the cordoned pods. The slices arrive on their own."""
        cordoned = self._read_cordons()
        if cordoned is not None and cordoned != self._cordoned:
            self._cordoned = cordoned
            self._apply()

    async def run(self) -> None:
        """Follows the slices and the cordons file forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follower.run())
            group.create_task(self._poll_cordons())

    async def _poll_cordons(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(_CORDON_INTERVAL)

    def _apply(self) -> None:
        if self.listed:
            self._fleet.update(members_of(self._follower.objects.values(), self._cordoned))

    def _read_cordons(self) -> frozenset[str] | None:
        """Returns None if the file cannot be read: the known cordons stay."""
        if self._cordoned_file is None:
            return frozenset()
        try:
            cordoned = _parse(self._cordoned_file)
        except (OSError, ValueError) as error:
            self._report(f"cordons {self._cordoned_file.name}: {error}")
            return None
        self._cordon_error = None
        return cordoned

    def _report(self, error: str) -> None:
        if error != self._cordon_error:
            log.warning("%s; keeping the known cordons", error)
        self._cordon_error = error


def _parse(path: Path) -> frozenset[str]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # the ConfigMap has no such key yet
        return frozenset()
    try:
        return frozenset(CordonedReplicas.model_validate_json(data).cordoned)
    except ValidationError as error:
        raise ValueError('it must be {"cordoned": ["POD", …]}') from error
