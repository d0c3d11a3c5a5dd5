"""HotPrefix's eviction as published (HotPrefix §3.3.1), with formulas of users. `Hotness` is compared with it."""

from __future__ import annotations

from collections.abc import Sequence

from plumage import defaults
from plumage.blocks.run import Run
from plumage.errors import ConfigurationError
from plumage.eviction.base import ScoredPolicy
from plumage.hotness.priority_formula import parse_formula
from plumage.hotness.record import NodeRecord

__all__ = ["HotnessPaper"]


class HotnessPaper(ScoredPolicy):
    """Evicts the leaf with the lowest priority: a formula over the fields of HotPrefix's cuckoo filter.

    block_tokens: tokens in a block, because length counts in tokens. Ageing changes every clock, so all leaves get new
    scores then, once in `aging_interval` requests.
    """

    def __init__(
        self, record: NodeRecord, priority: str = defaults.PAPER_PRIORITY, block_tokens: int = defaults.BLOCK_SIZE
    ) -> None:
        super().__init__()
        if block_tokens < 1:
            raise ConfigurationError(f"block_tokens must be at least 1, got {block_tokens}")
        self._record = record
        self._priority = parse_formula(priority)
        self._block_tokens = block_tokens

    def insert(self, run: Run, now: float) -> None:
        self._record.use(run)

    def access(self, run: Run, now: float) -> None:
        self._record.use(run)

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._record.moved(run, run.hashes[-blocks - 1])

    def split(self, upper: Run, lower: Run) -> None:
        self._record.moved(upper, lower.hashes[-1])

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        if run.hashes:
            self._record.moved(run, evicted[-1])
        super().shrink(run, evicted)

    def score(self, run: Run) -> float:
        uses = self._record.uses(run)
        return self._priority(uses.frequency, uses.clock, len(run.hashes) * self._block_tokens, uses.depth)

    def victim(self, now: float) -> Run:
        if self._record.aged:
            self._record.aged = False
            self.rescore()
        return super().victim(now)
