"""Fills the pool's hotness, which a soak's clients would fill in hours: a request that finds a prefix adds one node."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import redis

from plumage.directory.schema import SCHEMA_VERSION, PoolKeys
from plumage.directory.sharing.hotness_share import MOST_NODES
from plumage.hotness.fleet import HotnessDelta

__all__ = ["fill_hotness"]

_DELTAS: Final = 14  # of 16 that fit: a full view drops an eighth of its nodes, and would be filling again


def fill_hotness(socket: Path, pool: str, rng: random.Random) -> None:
    """Sends uses of made-up prefixes as a router does. socket: the directory's. Agents then hold a view of 57,344
    nodes, which is stored on the directory every minute and has 1.4 MB."""
    with redis.Redis(unix_socket_path=str(socket), protocol=2, socket_timeout=10.0) as client:
        for _ in range(_DELTAS):
            delta = HotnessDelta(0, {rng.getrandbits(64): (1, 100) for _ in range(MOST_NODES)})
            client.xadd(PoolKeys(pool).hotness, {"v": SCHEMA_VERSION, "d": delta.to_bytes()})
