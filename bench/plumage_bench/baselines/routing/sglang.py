"""SGLang's cache-aware routing, KVRouting's main baseline (§5, App. A), in the authors' fork and in the gateway.

Loads are out of balance if the busiest replica has over `absolute` requests more than the idlest and over `relative`
times as many. Then the least loaded replica is taken. In balance it is the best match of the router's own tree, if its
share of the prompt exceeds `threshold`. Otherwise the fork takes the replica with the *smallest tree*, the gateway the
least loaded. Loads are the router's own requests in flight. The product's tree has characters; the one here has chunks
of `chunk_characters` each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plumage.errors import ConfigurationError
from plumage.routing.base import ScoringPolicy
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage_bench.baselines.routing.prefix_index import PrefixIndex

__all__ = ["SGLANG_PRESETS", "SglangCacheAware", "SglangSettings"]


@dataclass(frozen=True, slots=True)
class SglangSettings:
    threshold: float
    absolute: float
    relative: float
    fallback_smallest_tree: bool


# The defaults differ by language binding. KVRouting was measured with the fork's.
SGLANG_PRESETS = {
    "fork": SglangSettings(threshold=0.5, absolute=32, relative=1.0001, fallback_smallest_tree=True),
    "gateway-rust": SglangSettings(threshold=0.5, absolute=32, relative=1.1, fallback_smallest_tree=False),
    "gateway-python": SglangSettings(threshold=0.3, absolute=64, relative=1.5, fallback_smallest_tree=False),
}


class SglangCacheAware(ScoringPolicy):
    """`preset` names the settings; `tree_characters` bounds each replica's tree (2^24 in the product)."""

    name = "SglangCacheAware"

    def __init__(
        self, *, rng: Randomness, preset: str = "fork", tree_characters: int = 2**24, chunk_characters: int = 256
    ) -> None:
        super().__init__(rng=rng)
        if preset not in SGLANG_PRESETS:
            raise ConfigurationError(f"preset: must be one of {', '.join(SGLANG_PRESETS)}, got {preset!r}")
        self.settings = SGLANG_PRESETS[preset]
        self._tree = PrefixIndex(max(tree_characters // chunk_characters, 1))

    def scores(self, query: Query, replicas: Sequence[ReplicaState]) -> list[float]:
        loads = [float(replica.routed) for replica in replicas]
        if self._out_of_balance(loads):
            return loads
        matched = self._tree.match(query.chunks)
        matches = [matched.get(replica.slot, 0) for replica in replicas]
        if max(matches) > self.settings.threshold * max(len(query.chunks), 1):
            return [-float(match) for match in matches]
        if self.settings.fallback_smallest_tree:
            return [float(self._tree.size(replica.slot)) for replica in replicas]
        return loads

    def _out_of_balance(self, loads: Sequence[float]) -> bool:
        least, most = min(loads), max(loads)
        return most - least > self.settings.absolute and most > self.settings.relative * least

    def routed(self, query: Query, choice: Choice) -> Ticket:
        self._tree.insert(choice.slot, query.chunks)
        return super().routed(query, choice)

    def forget(self, slot: int) -> None:
        self._tree.forget(slot)
