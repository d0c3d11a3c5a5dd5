"""Who is in the pool, from its Service's EndpointSlices; the cluster's counterpart of the membership file.

Contract: as the file's. The API server away, a watch that froze or a right that was taken changes nothing and shows in
`error`: stale members are better than none. `listed` once the slices were read, which a router waits for before it says
that it is ready. Cordons come from a file, since slices don't tell of pods' annotations.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from pathlib import Path
from typing import Final

from plumage.endpoint_slices import SERVICE_LABEL, members_of
from plumage.incluster.api import ApiServer
from plumage.incluster.follow import Follower
from plumage_router.config import EndpointSlicesConfig
from plumage_router.replicas import Fleet

__all__ = ["SliceMembership"]

log = logging.getLogger(__name__)

LOOK: Final = 1.0  # seconds between looks at the cordons; a ConfigMap's change takes longer to get here


class SliceMembership:
    """Keeps a fleet as the slices say."""

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
        """Why what is known may be old, None where it is not."""
        return self._follower.error or self._cordon_error

    def poll(self) -> None:
        """Reads the cordons; the slices come as they change."""
        cordoned = self._read_cordons()
        if cordoned is not None and cordoned != self._cordoned:
            self._cordoned = cordoned
            self._apply()

    async def run(self) -> None:
        """Follows for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follower.run())
            group.create_task(self._look())

    async def _look(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(LOOK)

    def _apply(self) -> None:
        if self.listed:
            self._fleet.update(members_of(self._follower.objects.values(), self._cordoned))

    def _read_cordons(self) -> frozenset[str] | None:
        """None where the file can't be understood: the cordons known before hold."""
        if self._cordoned_file is None:
            return frozenset()
        try:
            cordoned = _parse(self._cordoned_file)
        except (OSError, ValueError) as error:
            self._complain(f"cordons {self._cordoned_file.name}: {error}")
            return None
        self._cordon_error = None
        return cordoned

    def _complain(self, error: str) -> None:
        if error != self._cordon_error:
            log.warning("%s; keeping the cordons known before", error)
        self._cordon_error = error


def _parse(path: Path) -> frozenset[str]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # its key is not in the ConfigMap yet
        return frozenset()
    try:
        names = json.loads(data)["cordoned"]
    except (KeyError, TypeError) as error:
        raise ValueError('it must be {"cordoned": ["POD", …]}') from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError('it must be {"cordoned": ["POD", …]}')
    return frozenset(names)
