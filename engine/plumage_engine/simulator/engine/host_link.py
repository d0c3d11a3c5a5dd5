"""The host tier of a simulated engine: copies to host memory and back, and their bytes over PCIe.

There are three kinds of copies (HotPrefix §3.3, §3.4). Admission copies an evicted run to host memory. A load copies
blocks to the device when a request is admitted whose prefix continues in host memory. Promotion copies hot prefixes to
the device before their next request, in steps that only decode, in place of the coldest leaves (`plumage.tiering`).

By default admission and promotion rank by hotness, a formula that users may set. The baselines (HotPrefix §5.3.1,
§5.3.4) rank by `_RANKS`. They admit blocks that were used often ("Frequency") or all blocks ("All"), and promote by one
property alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from plumage import defaults
from plumage.blocks.events import EventSink
from plumage.blocks.eviction_policy import EvictionPolicy
from plumage.blocks.pool import BlockPool
from plumage.blocks.run import Run
from plumage.errors import ConfigurationError
from plumage.hotness.cuckoo import CuckooFilter
from plumage.hotness.priority_formula import parse_formula
from plumage.hotness.record import NodeRecord, Recorded
from plumage.prometheus.histogram import Histogram
from plumage.tiering import HostTier, PromotionBudget, PromotionTurn, PromotionWorth

__all__ = ["HostLink", "Transfers"]

_RANKS: Final[Mapping[str, str]] = {"Frequency": "frequency", "Recency": "clock", "Depth": "0 - depth"}
SIZES = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
"""Bytes; vLLM's buckets."""


class HostLink:
    """Between one engine's pool and its host tier. `take_bytes` gives the bytes that the next step copies; `stores` and
    `loads` count the copies to and from host memory.

    priority: the formula of hotness, where admission or promotion go by that. record: settings of the cuckoo filter
    that counts uses (`CuckooFilter`'s: widths in bits, aging_interval). worth: pauses promotion while it does not pay.
    """

    def __init__(
        self,
        capacity: int,
        *,
        block_size: int,
        block_bytes: int,
        device_blocks: int,
        rng: Random,
        sink: EventSink | None = None,
        min_frequency: int | None = None,
        admission: str = defaults.ADMISSION,
        promotion: str = defaults.PROMOTION,
        priority: str = defaults.HOST_PRIORITY,
        record: Mapping[str, int | None] | None = None,
        promotion_tokens: int = 4096,
    ) -> None:
        if admission not in ("Hotness", "Frequency", "All") or promotion not in ("Hotness", *_RANKS, "Off"):
            raise ConfigurationError(f"no host tier with admission {admission!r} and promotion {promotion!r}")
        # Frequencies must outlive eviction, so the filter holds more nodes than both tiers.
        given = {"fingerprint_bits": defaults.HOST_FINGERPRINT_BITS, **(record or {})}
        interval = given.pop("aging_interval", None)
        widths = {name: bits for name, bits in given.items() if bits is not None}
        blocks = capacity + device_blocks
        self.record = NodeRecord(CuckooFilter(2 * blocks, rng, turnover=blocks, aging_interval=interval, **widths))
        self.tier = HostTier(
            capacity,
            self.record,
            block_tokens=block_size,
            min_frequency=min_frequency,
            admission=parse_formula(_RANKS.get(admission, priority)),
            promotion=parse_formula(_RANKS.get(promotion, priority)),
            sink=sink,
        )
        self._turn = None if promotion == "Off" else PromotionTurn()
        self.worth = PromotionWorth()
        self._unused: set[int] = set()  # promoted blocks that no request has used
        self._everything = admission == "All"
        self._promotion_tokens = promotion_tokens
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._copied = 0
        self.stores, self.loads = Transfers(), Transfers()

    def recorded(self, policy: EvictionPolicy) -> EvictionPolicy:
        """The device's eviction policy, with a hotness record kept beside it."""
        return Recorded(policy, self.record)

    def evicted(self, run: Run, blocks: Sequence[int]) -> None:
        """The pool's eviction hook."""
        self._lost(blocks)
        self._copy(self.stores, self.tier.offer(run, blocks, always=self._everything))

    def match(self, hashes: Sequence[int], start: int) -> int:
        """Blocks that host memory holds of the chain from index `start` on."""
        return self.tier.match(hashes, start)

    def load(self, hashes: Sequence[int]) -> None:
        """Copy these blocks to the device for a request."""
        self.tier.came_back(hashes)
        self._copy(self.loads, self.tier.load(hashes))

    def found(self, hashes: Sequence[int]) -> None:
        """A request found these blocks on the device."""
        used = self._unused.intersection(hashes) if self._unused else ()
        if used:
            self._unused.difference_update(used)
            self.worth.count_outcomes(used=len(used))
            self.tier.came_back(used)

    def promote(self, pool: BlockPool, *, prefill_tokens: int, reserve: int, now: float) -> None:
        """After a step is scheduled: promote as much as its decodes can hide, if a promotion is due."""
        if self._turn is None or not self._turn.step(prefill_tokens=prefill_tokens) or not self.worth.turn():
            return
        budget = PromotionBudget(self._promotion_tokens, pool.free * self._block_size, reserve * self._block_size)
        for promotion in self.tier.plan(pool.tree, budget):
            if all(self._discard(pool, victim.key) for victim in promotion.victims):
                self._promote_blocks(pool, self.tier.blocks_of(promotion.node), promotion.node.parent, now)

    def cleared(self, *, external: bool) -> None:
        """The device's cache is empty. external: empty host memory too."""
        self._unused.clear()
        if external:
            self.tier.clear()

    def take_bytes(self) -> int:
        """Bytes to copy since the last call."""
        copied, self._copied = self._copied, 0
        return copied * self._block_bytes

    def _discard(self, pool: BlockPool, key: int) -> bool:
        """Drop a leaf of the device that a promotion replaces."""
        run = pool.tree.run_at(key)
        blocks = () if run is None else tuple(run.hashes)
        if not pool.discard(key):
            return False
        self._lost(blocks)
        return True

    def _lost(self, blocks: Sequence[int]) -> None:
        """The device has these blocks no longer."""
        wasted = self._unused.intersection(blocks) if self._unused else ()
        if wasted:
            self._unused.difference_update(wasted)
            self.worth.count_outcomes(wasted=len(wasted))

    def _copy(self, way: Transfers, blocks: int) -> None:
        self._copied += blocks
        way.add(blocks * self._block_bytes)

    def _promote_blocks(self, pool: BlockPool, blocks: Sequence[int], parent: int | None, now: float) -> None:
        """Promotes blocks. That is no use of the node, so its hotness record is restored."""
        uses = self.record.get(blocks[-1]) if blocks else None
        if blocks and pool.bring(blocks, parent, now):
            self._copy(self.loads, self.tier.load(blocks))
            self._unused.update(blocks)
            if uses is not None:
                self.record.table.put(blocks[-1], uses)


class Transfers:
    """Counts the transfers between device and host memory in one direction: total bytes, and a histogram of sizes."""

    def __init__(self) -> None:
        self.bytes = 0
        self.sizes = Histogram(SIZES)

    def add(self, size: int) -> None:
        """Count one transfer; 0 bytes are none."""
        if size:
            self.bytes += size
            self.sizes.add(size)
