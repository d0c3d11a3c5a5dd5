"""KubeAI's PrefixHash: consistent hashing with bounded loads (CHWBL).

The first `prefix_characters` of the prompt are hashed onto a ring with `virtual_nodes` points for each replica. The
first replica clockwise with load ≤ 1.25·(total + 1) ÷ n gets the request. Without text the first chunk's hash is used.

Source: substratusai/kubeai, internal/loadbalancer/balance_chwbl.go, as read in mid-2026, after Mirrokni, Thorup and
Zadimoghaddam, Consistent Hashing with Bounded Loads, SODA 2018.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from xxhash import xxh64_intdigest

from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState

__all__ = ["KubeAI"]


class KubeAI(ScoringPolicy):
    name = "KubeAI"

    def __init__(
        self,
        *,
        rng: Randomness,
        prefix_characters: int = 100,
        virtual_nodes: int = 256,
        load_factor: float = 1.25,
    ) -> None:
        super().__init__(rng=rng)
        self._prefix_characters = prefix_characters
        self._virtual_nodes = virtual_nodes
        self._load_factor = load_factor
        self._members: tuple[int, ...] = ()
        self._ring: list[tuple[int, int]] = []

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        self._follow(tuple(replica.slot for replica in replicas))
        loads = {replica.slot: replica.routed for replica in replicas}
        limit = self._load_factor * (sum(loads.values()) + 1) / len(loads)
        start = bisect_left(self._ring, (self._key(query), -1))
        for offset in range(len(self._ring)):
            slot = self._ring[(start + offset) % len(self._ring)][1]
            if loads[slot] <= limit:
                return Choice(slot)
        return Choice(min(loads, key=loads.__getitem__))

    def _key(self, query: Query) -> int:
        if query.text:
            return int(xxh64_intdigest(query.text[: self._prefix_characters]))
        first = query.chunks[0] if query.chunks else 0
        return int(xxh64_intdigest(first.to_bytes(8, "little", signed=False)))

    def _follow(self, members: tuple[int, ...]) -> None:
        """Builds the ring again after replicas were added or removed. This is rare, and a replica's points do not
        depend on others."""
        if members == self._members:
            return
        self._members = members
        self._ring = sorted(
            (int(xxh64_intdigest(f"{slot}-{node}".encode())), slot)
            for slot in members
            for node in range(self._virtual_nodes)
        )
