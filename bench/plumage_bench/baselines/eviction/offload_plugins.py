"""The rules of two plugins that replace LRU in vLLM's host memory, among leaves of a prefix tree.

Written from their public descriptions, for requests without the tags that evoke's clients may send. Uses count while a
block is cached. Neither says what it remembers of an evicted one.

Sources: vllm-marconi-offload 0.2 and evoke-vllm 0.1, the descriptions on PyPI. The former calls its rule Marconi-style.
Marconi's own (Pan et al., Prefix Caching for the Era of Hybrid LLMs, MLSys 2025) weighs the FLOPs that a hit saves by
its bytes; these vary between layers of hybrid models, and hardly along a prompt of a model with attention alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import log
from typing import Final

from plumage.blocks.run import Run
from plumage.errors import StateError
from plumage.eviction.base import QuietPolicy, ScoredPolicy
from plumage.eviction.leaf_heap import NO_VICTIM

__all__ = ["Evoke", "MarconiOffload"]

_MOST: Final = 52  # uses, after which another one changes evoke's score by less than a float shows


class MarconiOffload(ScoredPolicy):
    """reuse × exp(−decay × age) ÷ (depth + 1), lowest first. decay: for each unit of the pool's clock; the default is
    that of its documented example. All scores decay alike, so the logarithm without the time of now orders them."""

    def __init__(self, decay: float = 0.005) -> None:
        super().__init__()
        self._decay = decay

    def score(self, run: Run) -> float:
        depth = run.start + len(run.hashes) - 1
        return log(run.uses) + self._decay * run.used - log(depth + 1)


class Evoke(QuietPolicy):
    """Half of the score is recency, 2^(−age ÷ half_life), half is reuse, 1 − 2^(−hits); lowest first. half_life: in
    blocks touched; 64 blocks of 256 tokens in its documented example."""

    def __init__(self, half_life: float = 1024.0) -> None:
        self._half_life = half_life
        self._touched = 0
        self._last: dict[Run, int] = {}
        self._leaves: dict[Run, int] = {}  # evictable ones, with the serial number of their valid entry
        self._by_hits: dict[int, list[tuple[int, int, Run]]] = {}  # heaps by last touch
        self._serial = 0

    def insert(self, run: Run, now: float) -> None:
        self._touch(run, len(run.hashes))

    def access(self, run: Run, now: float) -> None:
        self._touch(run, len(run.hashes))

    def grow(self, run: Run, blocks: int, now: float) -> None:
        self._touch(run, blocks)

    def split(self, upper: Run, lower: Run) -> None:
        self._last[upper] = self._last[lower]

    def release(self, run: Run) -> None:
        self._serial += 1
        self._leaves[run] = self._serial
        heap = self._by_hits.setdefault(min(run.uses - 1, _MOST), [])
        heapq.heappush(heap, (self._last[run], self._serial, run))

    def hold(self, run: Run) -> None:
        self._leaves.pop(run, None)

    def shrink(self, run: Run, evicted: Sequence[int]) -> None:
        if not run.hashes:
            self._leaves.pop(run, None)
            del self._last[run]

    def victim(self, now: float) -> Run:
        best: tuple[float, int, Run] | None = None
        for hits, heap in self._by_hits.items():
            while heap and self._leaves.get(heap[0][2]) != heap[0][1]:
                heapq.heappop(heap)
            if heap:
                last = heap[0][0]
                score = 0.5 ** ((self._touched - last) / self._half_life) + 1.0 - 0.5**hits
                if best is None or (score, last) < best[:2]:
                    best = score, last, heap[0][2]
        if best is None:
            raise StateError(NO_VICTIM)
        return best[2]

    def clear(self) -> None:
        self._last.clear()
        self._leaves.clear()
        self._by_hits.clear()

    def _touch(self, run: Run, blocks: int) -> None:
        self._touched += blocks
        self._last[run] = self._touched
