"""Host memory as the second tier of the prefix cache: its blocks, their admission and their promotion.

Pure: it decides which blocks to copy, and the caller copies them. `offer`: the pool is about to evict blocks from the
GPU. `match`, then `load`: a request needs the blocks after its GPU prefix. `plan`: the engine asks for promotions
during decode. Blocks that are copied to the GPU also stay here, as in vLLM's offloading. So their next eviction needs
no copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

from plumage import defaults
from plumage.blocks.events import CPU, EventSink, Removed, Stored
from plumage.blocks.run import Name, Run
from plumage.blocks.tree import PrefixTree
from plumage.errors import ConfigurationError
from plumage.hotness.node_uses import NodeUses, UsesSource
from plumage.hotness.priority_formula import Formula
from plumage.tiering.admission import PRIORITY, AdmissionPlan, LeastUses, plan_admission
from plumage.tiering.coldest import ColdestFirst
from plumage.tiering.node import TierNode
from plumage.tiering.promotion import Promotion, PromotionBudget, plan_promotion

__all__ = ["HostTier"]

_CONSIDERED = 256
"""Nodes of each tier that a promotion plan considers, to bound its cost: the last ones added to host memory, and the
GPU leaves that have been idle longest. A plan's budget rarely suffices for more."""
_UNKNOWN = NodeUses(1, 0, 1 << 16)
"""Assumed for a node that the full filter has dropped: used once, long ago, far from the root."""


@dataclass(eq=False, slots=True)
class _Entry:
    """once: copied after one use, and not loaded since then."""

    hashes: list[int] = field(repr=False)
    parent: int | None
    hotness_key: int
    once: bool = False


class HostTier:
    """capacity: blocks. uses: the hotness record, of the whole pool where there is one. block_tokens: tokens in a
    block. min_frequency: uses for a copy; None: as many as pay (`LeastUses`). admission, promotion: formulas of a
    node's hotness for each plan; length counts in tokens."""

    def __init__(
        self,
        capacity: int,
        uses: UsesSource,
        *,
        block_tokens: int = defaults.BLOCK_SIZE,
        min_frequency: int | None = None,
        admission: Formula = PRIORITY,
        promotion: Formula = PRIORITY,
        sink: EventSink | None = None,
    ) -> None:
        if capacity < 1 or block_tokens < 1:
            raise ConfigurationError("host tier: capacity and block_tokens must be at least 1")
        self.capacity = capacity
        self.used = 0
        self.stored = 0
        self.loaded = 0
        self.refused = 0
        self._node_uses = uses
        self._block_tokens = block_tokens
        self.least_uses = LeastUses(min_frequency)
        self._admission = admission
        self._promotion = promotion
        self._sink = sink
        self._entries: ColdestFirst[_Entry] = ColdestFirst(lambda entry: self._node(entry, admission).hotness)
        self._entry_of: dict[int, _Entry] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._entry_of

    def match(self, hashes: Sequence[int], start: int) -> int:
        """Blocks of the chain `hashes` that are here without a gap from index `start`, the end of the GPU prefix."""
        held = 0
        for block in hashes[start:]:
            if block not in self._entry_of:
                break
            held += 1
        return held

    def load(self, hashes: Sequence[int]) -> int:
        """The caller copies these blocks to the GPU. Returns their number. They also stay here."""
        self.loaded += len(hashes)
        return len(hashes)

    def came_back(self, hashes: Iterable[int]) -> None:
        """A request uses these blocks, which were here before."""
        if not self.least_uses.adapts:
            return
        for block in hashes:
            entry = self._entry_of.get(block)
            if entry is not None and entry.once:
                entry.once = False
                self.least_uses.count_outcomes(loaded=len(entry.hashes))

    def offer(self, run: Run, evicted: Sequence[int], *, always: bool = False) -> int:
        """The GPU is about to drop `evicted` from the end of `run`. Returns the number of blocks to copy to host memory
        (0: refused). always: admit them however cold they are, if the tier can hold them at all."""
        above, least = len(run.hashes) - len(evicted), 0 if always else self.least_uses.of(run.hashes[0])
        return sum(
            self._offer(_Entry(list(evicted[start:end]), _above(run, above + start), run.hashes[-1]), least, always)
            for start, end in self._missing(evicted)
        )

    def _missing(self, chain: Sequence[int]) -> list[tuple[int, int]]:
        """The pieces of `chain` without a gap that are not here. An entry with a gap would be promoted as a chain."""
        here = [block in self._entry_of for block in chain]
        starts = [at for at, held in enumerate(here) if not held and (at == 0 or here[at - 1])]
        ends = [at + 1 for at, held in enumerate(here) if not held and (at + 1 == len(here) or here[at + 1])]
        return list(zip(starts, ends, strict=True))

    def _offer(self, entry: _Entry, least: int, always: bool) -> int:
        node, blocks = self._node(entry, self._admission), len(entry.hashes)
        if self._admit(replace(node, hotness=inf) if always else node, least):
            entry.once = self.least_uses.adapts and node.frequency == 1
            self._keep(entry)
            return blocks
        self.refused += blocks
        return 0

    def _admit(self, node: TierNode, min_frequency: int) -> bool:
        """Decide about `node`, and drop the residents that it replaces."""
        free = (self.capacity - self.used) * self._block_tokens
        plan = AdmissionPlan(False)

        def choose(coldest: Iterator[_Entry]) -> None:
            nonlocal plan
            residents = (self._node(entry, self._admission) for entry in coldest)
            plan = plan_admission(node, residents, free, min_frequency)
            for victim in plan.victims:
                self._drop(self._entry_of[victim.key])

        self._entries.ask(choose)
        return plan.admitted

    def plan(self, tree: PrefixTree, budget: PromotionBudget) -> list[Promotion]:
        """The promotions that are worth starting: host roots that replace GPU leaves (`plan_promotion`). `blocks_of`
        returns their blocks."""
        newest = islice(self._entries.newest(), _CONSIDERED)
        roots = [self._node(entry, self._promotion) for entry in newest if self._is_root(entry, tree)]
        leaves = [self._leaf(run) for run in islice(tree.leaves, _CONSIDERED)]
        return plan_promotion(roots, leaves, budget)

    def blocks_of(self, node: TierNode) -> list[int]:
        """The blocks of a node that `plan` returned; empty if it was dropped since then."""
        entry = self._entry_of.get(node.key)
        return [] if entry is None else list(entry.hashes)

    def clear(self) -> None:
        """Drop all blocks."""
        entries = dict.fromkeys(self._entry_of.values())
        self._entries.clear()
        self._entry_of.clear()
        self.used = 0
        if self._sink is not None:
            for entry in entries:
                self._sink(Removed(tuple(entry.hashes), CPU))

    def _is_root(self, entry: _Entry, tree: PrefixTree) -> bool:
        return entry.hashes[0] not in tree and (entry.parent is None or entry.parent in tree)

    def _node(self, entry: _Entry, priority: Formula) -> TierNode:
        return self._rank(entry.hashes, entry.parent, entry.hotness_key, priority)

    def _leaf(self, run: Run) -> TierNode:
        return self._rank(run.hashes, _above(run, 0), run.hashes[-1], self._promotion)

    def _rank(self, hashes: Sequence[int], parent: int | None, hotness_key: int, priority: Formula) -> TierNode:
        uses = self._node_uses.get(hotness_key) or _UNKNOWN
        tokens = len(hashes) * self._block_tokens
        hotness = priority(uses.frequency, uses.clock, tokens, uses.depth)
        return TierNode(hashes[-1], parent, tokens, uses.frequency, hotness)

    def _keep(self, entry: _Entry) -> None:
        self._entries.add(entry)
        self._entry_of.update(dict.fromkeys(entry.hashes, entry))
        self.used += len(entry.hashes)
        self.stored += len(entry.hashes)
        if self._sink is not None:
            self._sink(Stored(tuple(entry.hashes), entry.parent, CPU))

    def _drop(self, entry: _Entry) -> None:
        self._entries.discard(entry)
        if entry.once:
            self.least_uses.count_outcomes(wasted=len(entry.hashes))
        for block in entry.hashes:
            del self._entry_of[block]
        self.used -= len(entry.hashes)
        if self._sink is not None:
            self._sink(Removed(tuple(entry.hashes), CPU))


def _above(run: Run, index: int) -> Name | None:
    """The block before block `index` of `run`."""
    if index:
        return run.hashes[index - 1]
    return None if run.parent is None else run.parent.hashes[-1]
